import io

from PIL import Image


class ImageMediaIO:
    def __init__(self, background="white"):
        self.background = background

    def load_bytes(self, data):
        image = Image.open(io.BytesIO(data))
        image.load()
        return [*image.size, self.background]
