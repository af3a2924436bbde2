"""Finds the lines of a page and cuts out their pictures: as many as the page has.

PAGE: UINT8[height,width,3] and HEAT: FP32[1,1,H,W], how much each point looks like text
-> BOX: FP32[lines,4], left, top, right, bottom in pixels of the page, in reading order;
   LINE: FP32[lines,3,48,width], the lines in one tensor, each at its left end, and WIDTH: INT32[lines], how far each goes;
   HEAD: FP32[lines,3,48,192], the lines squeezed, for the question which way up they are.
A page without text gives no BOX, and one blank LINE: the networks do not take a tensor of none.
"""

import numpy as np
from PIL import Image

import triton_python_backend_utils as pb_utils

TEXT = 0.3
"""A point that is this hot belongs to a line."""
SURE = 0.5
"""A line is this hot on average."""
LEAST = 4
"""A line is this high and wide at least, in points."""
MARGIN = 1.6
"""The detector marks the heart of a line: its box grows by its area over its circumference, times this."""
HEIGHT, HEAD_WIDTH, SHORTEST, LONGEST = 48, 192, 320, 3200


def regions(heat):
    """FP32[regions,4]: boxes of connected hot points, in points. A run of them in a row joins the runs that it touches above."""
    edges = np.diff(np.pad(heat > TEXT, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    rows, starts = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    group = list(range(len(rows)))

    def root(run):
        while group[run] != run:
            group[run] = group[group[run]]
            run = group[run]
        return run

    above = 0
    for run in range(len(rows)):
        while rows[above] < rows[run] - 1 or (rows[above] == rows[run] - 1 and ends[above] <= starts[run]):
            above += 1
        other = above
        while rows[other] == rows[run] - 1 and starts[other] < ends[run]:
            group[root(run)] = root(other)
            other += 1
    sums = np.pad(np.cumsum(heat, axis=1, dtype=np.float64), ((0, 0), (1, 0)))
    found = []
    roots = np.array([root(run) for run in range(len(rows))], np.int64)
    for one in np.unique(roots):
        runs = np.flatnonzero(roots == one)
        y, x, end = rows[runs], starts[runs], ends[runs]
        box = x.min(), y.min(), end.max(), y.max() + 1
        mean = (sums[y, end] - sums[y, x]).sum() / (end - x).sum()
        if mean > SURE and min(box[2] - box[0], box[3] - box[1]) >= LEAST:
            found.append(box)
    return np.array(found, np.float32).reshape(-1, 4)


def grown(boxes):
    """The boxes with the margins that the detector leaves out."""
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    margin = (MARGIN * width * height / (2 * (width + height)))[:, np.newaxis]
    return boxes + margin * np.array([-1, -1, 1, 1], np.float32)


def in_reading_order(boxes):
    """From top to bottom; boxes whose middles are at one height are a row, from left to right."""
    rows: list[list[int]] = []
    middle = (boxes[:, 1] + boxes[:, 3]) / 2
    for index in np.argsort(middle):
        if rows and middle[index] < boxes[rows[-1][0], 3]:
            rows[-1].append(index)
        else:
            rows.append([index])
    return boxes[[index for row in rows for index in sorted(row, key=lambda one: boxes[one, 0])]]


def shrunk(crop, width):
    """FP32[3,48,width], blue first, between -1 and 1."""
    pixels = np.asarray(crop.resize((width, HEIGHT), Image.Resampling.BILINEAR), np.float32)
    return (pixels[:, :, ::-1] / 127.5 - 1).transpose(2, 0, 1)


def pictures(page, boxes):
    """LINE, WIDTH and HEAD for boxes in pixels."""
    crops = [page.crop(box) for box in boxes.round().astype(int).tolist()]
    widths = [min(LONGEST, max(1, round(HEIGHT * crop.width / crop.height))) for crop in crops]
    count = max(1, len(crops))
    lines = np.zeros((count, 3, HEIGHT, max([SHORTEST, *widths])), np.float32)
    heads = np.zeros((count, 3, HEIGHT, HEAD_WIDTH), np.float32)
    for index, (crop, width) in enumerate(zip(crops, widths, strict=True)):
        lines[index, :, :, :width] = shrunk(crop, width)
        head = min(HEAD_WIDTH, width)
        heads[index, :, :, :head] = shrunk(crop, head)
    return lines, np.array(widths or [0], np.int32), heads


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        page, heat = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("PAGE", "HEAT"))
        (height, width), (rows, columns) = page.shape[:2], heat.shape[2:]
        scale = np.array([width / columns, height / rows] * 2, np.float32)
        boxes = in_reading_order(grown(regions(heat[0, 0])) * scale)
        boxes = np.clip(boxes, 0, np.array([width, height] * 2, np.float32))
        outputs = dict(zip(("LINE", "WIDTH", "HEAD"), pictures(Image.fromarray(page), boxes), strict=True))
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in {"BOX": boxes, **outputs}.items()])
