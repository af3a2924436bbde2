"""The arithmetic between the networks of MTCNN. Boxes are FP32[n,5]: left, top, right, bottom in pixels, and how sure.

The networks take pictures as [n,x,y,3], RGB, (value - 127.5) / 128. Each says, of each picture, whether it is a face, and by how
much of its size the box should move.
"""

import numpy as np
from PIL import Image

SMALLEST = 40
"""The smallest face that is looked for, in pixels."""
STEP = 0.709
"""From a level of the pyramid to the next."""
WINDOW, STRIDE = 12, 2
"""The window that pnet sees, and its step."""
SURE = {"pnet": 0.6, "rnet": 0.7, "onet": 0.7}


def pyramid(image):
    """(scale, picture FP32[x,y,3]) for each level, as many as the image has."""
    scale, levels = WINDOW / SMALLEST, []
    while min(image.size) * scale >= WINDOW:
        size = [int(np.ceil(side * scale)) for side in image.size]
        levels.append((scale, _normal(image.resize(size, Image.Resampling.BOX))))
        scale *= STEP
    return levels


def candidates(scale, moves, scores):
    """Boxes of one level, moved, from pnet's moves FP32[x,y,4] and scores FP32[x,y,2]."""
    x, y = np.nonzero(scores[..., 1] > SURE["pnet"])
    left, top = (x * STRIDE + 1) / scale, (y * STRIDE + 1) / scale
    side = (WINDOW - 1) / scale
    boxes = np.stack([left, top, left + side, top + side, scores[x, y, 1]], axis=1)
    kept = best(boxes, 0.5)
    return moved(boxes[kept], moves[x, y][kept])


def proposals(boxes):
    """Squares for rnet, from the boxes of all levels."""
    return square(boxes[best(boxes, 0.7)])


def refined(boxes, moves, scores):
    """Squares for onet, from rnet's moves FP32[n,4] and scores FP32[n,2]."""
    sure = scores[:, 1] > SURE["rnet"]
    boxes = moved(np.column_stack([boxes[sure, :4], scores[sure, 1]]), moves[sure])
    return square(boxes[best(boxes, 0.7)])


def faces(boxes, moves, points, scores):
    """Boxes and landmarks FP32[n,5,2] of the faces, from onet's moves FP32[n,4], points FP32[n,10] and scores FP32[n,2]."""
    sure = scores[:, 1] > SURE["onet"]
    boxes, points = np.column_stack([boxes[sure, :4], scores[sure, 1]]), points[sure]
    size = (boxes[:, 2:4] - boxes[:, :2])[:, np.newaxis]
    landmarks = boxes[:, np.newaxis, :2] + points.reshape(-1, 2, 5).transpose(0, 2, 1) * size
    boxes = moved(boxes, moves[sure])
    kept = best(boxes, 0.7, of_smaller=True)
    return boxes[kept], landmarks[kept]


def moved(boxes, moves):
    """The boxes, their sides moved by so much of their width and height."""
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    size = np.stack([width, height, width, height], axis=1)
    return np.concatenate([boxes[:, :4] + moves * size, boxes[:, 4:]], axis=1)


def best(boxes, overlap, *, of_smaller=False):
    """The indices of the boxes that do not overlap a surer one by more than so much of both, or of the smaller of them."""
    left, top, right, bottom, scores = boxes.T
    area = (right - left) * (bottom - top)
    order, kept = scores.argsort()[::-1], []
    while len(order):
        one, rest = order[0], order[1:]
        kept.append(one)
        width = np.minimum(right[one], right[rest]) - np.maximum(left[one], left[rest])
        height = np.minimum(bottom[one], bottom[rest]) - np.maximum(top[one], top[rest])
        common = np.clip(width, 0, None) * np.clip(height, 0, None)
        whole = np.minimum(area[one], area[rest]) if of_smaller else area[one] + area[rest] - common
        order = rest[common <= overlap * whole]
    return np.array(kept, np.int64)


def square(boxes):
    """The boxes widened to squares about their middles."""
    middle = (boxes[:, :2] + boxes[:, 2:4]) / 2
    half = (boxes[:, 2:4] - boxes[:, :2]).max(axis=1, keepdims=True) / 2
    return np.concatenate([middle - half, middle + half, boxes[:, 4:]], axis=1)


def crops(image, boxes, side):
    """FP32[n,side,side,3]: what is in the boxes; what is outside the image is black."""
    found = np.empty((len(boxes), side, side, 3), np.float32)
    for index, (left, top, right, bottom) in enumerate(boxes[:, :4].round().astype(int).tolist()):
        crop = image.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
        found[index] = _normal(crop.resize((side, side), Image.Resampling.BOX))
    return found


def _normal(image):
    pixels = (np.asarray(image, np.float32) - 127.5) / 128
    return np.ascontiguousarray(pixels.transpose(1, 0, 2))
