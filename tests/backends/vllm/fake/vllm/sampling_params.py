import enum


class RequestOutputKind(enum.Enum):
    DELTA = 1


class StructuredOutputsParams:
    def __init__(self, **arguments):
        self.arguments = arguments
