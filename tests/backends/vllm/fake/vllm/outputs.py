class PoolingRequestOutput:
    def __init__(self, request_id, outputs):
        self.request_id = request_id
        self.outputs = outputs
