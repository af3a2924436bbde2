class TritonPythonModel:
    def initialize(self, args):
        self.weights = open("weights.bin", "rb").read()

    def execute(self, requests):
        return []
