"""`python docs/pictures`: write the pictures of the pages; with --check, exit with 1 if one is not as it would be written."""

from __future__ import annotations

import sys
from pathlib import Path

from drawing import Drawing  # its folder is the program

FOLDER = Path(__file__).parent


def repository() -> Drawing:
    """A model repository."""
    d = Drawing(720, 300, "A model repository: a folder for each model, in it a folder for each version")
    d.frame(10, 10, 420, 280, "models/", color="grey")
    d.frame(30, 40, 380, 150, "iris/", color="blue")
    d.words(50, 85, "config.pbtxt", style="m")
    for x, version in ((50, "1/"), (230, "2/")):
        d.frame(x, 100, 160, 75, version, color="green")
        d.words(x + 20, 150, "model.onnx", style="m")
    d.frame(30, 205, 380, 70, "words/", color="blue")
    d.frame(230, 213, 160, 54, "1/", color="green")
    d.words(250, 252, "model.py", style="m")
    for y, points, text in (
        (30, (430, 25), "the repository: tpy serve models"),
        (62, (410, 57), "a model; the folder's name is its name"),
        (88, (145, 80), "inputs, outputs, batching, instances"),
        (130, (390, 130), "a version; the highest is served,"),
        (247, (390, 242), "a model without config.pbtxt says"),
    ):
        d.line(points, (447, y - 5))
        d.words(452, y, text, style="s")
    d.words(452, 146, "unless version_policy says otherwise", style="s")
    d.words(452, 263, "itself what it takes and gives", style="s")
    return d


def request() -> Drawing:
    """One request on its way through the server."""
    d = Drawing(720, 245, "One request goes to an instance in one call, and its answer comes back with that of its batch")
    d.box(10, 40, 60, 122, "client", color="grey")
    d.frame(100, 10, 440, 180, "the loop")
    for x, text, color in ((115, "parse", "blue"), (215, "admit", "blue"), (315, "schedule", "amber"), (430, "channel", "amber")):
        d.box(x, 45, 85, 40, text, color=color)
    for x, text, color in ((115, "write", "blue"), (215, "encode", "blue"), (430, "report", "amber")):
        d.box(x, 120, 85, 40, text, color=color)
    d.frame(570, 10, 140, 180, "an instance")
    for y, text in ((49, "gather"), (88, "execute"), (124, "scatter")):
        d.box(590, y, 100, 32, text, color="green")
    for left, right, y in ((70, 115, 65), (200, 215, 65), (300, 315, 65), (400, 430, 65), (515, 590, 65)):
        d.arrow((left, y), (right, y))
    for right, left in ((590, 515), (430, 300), (215, 200), (115, 70)):
        d.arrow((right, 140), (left, 140))
    for y, below in ((81, 88), (120, 124)):
        d.line((640, y), (640, below))
    d.words(365, 132, "its batch is done", anchor="middle", style="s q")
    d.words(320, 212, "one call on the loop's thread each way: no task is woken in between", anchor="middle", style="s q")
    d.words(640, 212, "a thread,", anchor="middle", style="s q")
    d.words(640, 228, "or a worker process", anchor="middle", style="s q")
    d.words(320, 234, "two hand-overs a batch", anchor="middle", style="s q")
    return d


def batch() -> Drawing:
    """Dynamic batching over time."""
    d = Drawing(720, 270, "A batch is formed when the instance is free, from what waits then")
    for y, text in ((52, "requests"), (122, "queue"), (192, "instance")):
        d.words(10, y, text, style="b")
    for y in (70, 140, 210):
        d.line((90, y), (710, y), dashed=True)
    colors = {"A": "blue", "B": "green", "C": "green", "D": "green", "E": "amber", "F": "amber"}
    for x, name in ((110, "A"), (175, "B"), (215, "C"), (275, "D"), (400, "E"), (455, "F")):
        d.box(x, 32, 28, 28, name, color=colors[name])
    d.arrow((124, 62), (124, 172))
    for x, y, name in ((189, 62, "B"), (229, 62, "C"), (289, 62, "D")):
        d.line((x, y), (x, 100))
        d.box(x - 14, 102, 28, 28, name, color=colors[name])
    for x, name in ((414, "E"), (469, "F")):
        d.line((x, 62), (x, 100))
        d.box(x - 14, 102, 28, 28, name, color=colors[name])
    d.box(112, 175, 206, 28, "A", color="blue")
    d.box(322, 175, 230, 28, "B  C  D", color="green")
    d.box(556, 175, 150, 28, "E  F", color="amber")
    d.line((320, 25), (320, 225), dashed=True)
    d.line((554, 25), (554, 225), dashed=True)
    d.words(320, 18, "free", anchor="middle", style="s q")
    d.words(554, 18, "free", anchor="middle", style="s q")
    d.arrow((303, 116), (322, 116), (322, 172))
    d.arrow((483, 116), (556, 116), (556, 172))
    d.arrow((90, 240), (710, 240))
    d.words(704, 260, "time", anchor="end", style="s q")
    d.words(112, 260, "A finds the instance idle; B, C and D wait for it, and go together", style="s q")
    return d


def sequences() -> Drawing:
    """Sequences, slots and the backlog."""
    d = Drawing(720, 255, "Each sequence has a slot in an instance; one that finds none free waits in the backlog")
    d.words(10, 22, "requests, by sequence", style="b")
    colors = ("blue", "green", "amber", "red", "grey")
    for number, color in enumerate(colors):
        y = 34 + number * 36 + (16 if color == "grey" else 0)
        for x, width, text in ((10, 58, "START"), (72, 30, ""), (106, 30, ""), (140, 44, "END")):
            d.box(x, y, width, 28, text, color=color)
        d.words(194, y + 19, f"id {17 + number}", style="s")
    d.arrow((240, 102), (420, 102))
    d.words(330, 90, "a START takes the", anchor="middle", style="s q")
    d.words(330, 122, "lowest slot that is free", anchor="middle", style="s q")
    for number, y in enumerate((15, 110)):
        d.frame(430, y, 280, 86, f"instance {number}")
        for slot in (0, 1):
            d.words(445 + slot * 130, y + 42, f"slot {slot}", style="s q")
            d.box(445 + slot * 130, y + 48, 120, 28, f"id {17 + number + 2 * slot}, state", color=colors[number + 2 * slot])
    d.box(290, 194, 80, 28, "backlog", color="grey")
    d.arrow((240, 208), (290, 208))
    d.arrow((370, 208), (570, 208), (570, 198), dashed=True)
    d.words(380, 228, "takes the first slot whose sequence has had its END", style="s q")
    return d


def ensemble() -> Drawing:
    """The steps of an ensemble."""
    d = Drawing(720, 190, "An ensemble passes tensors from step to step inside the server")
    d.frame(110, 15, 500, 160, "ensemble")
    d.box(10, 75, 70, 40, "request", color="grey")
    d.box(640, 75, 74, 40, "response", color="grey")
    d.box(135, 75, 110, 40, "resize", color="green")
    d.box(315, 45, 120, 40, "detector", color="blue")
    d.box(315, 115, 120, 40, "classifier", color="blue")
    d.box(490, 75, 105, 40, "join", color="green")
    d.arrow((80, 95), (135, 95))
    d.arrow((595, 95), (640, 95))
    for y in (65, 135):
        d.arrow((245, 95), (280, 95), (280, y), (315, y))
    d.line((435, 65), (462, 65), (462, 95))
    d.line((435, 135), (462, 135), (462, 95))
    d.arrow((462, 95), (490, 95))
    d.words(285, 52, "image", style="s q", anchor="end")
    d.words(440, 55, "boxes", style="s q")
    d.words(440, 152, "names", style="s q")
    d.words(375, 103, "side by side", style="s q", anchor="middle")
    return d


def swap() -> Drawing:
    """The life of two generations of a version while the model is updated."""
    d = Drawing(720, 240, "An update loads the new copy beside the old one; no request fails")
    for x, text in ((290, "files change"), (430, "swap"), (540, "last answer")):
        d.line((x, 30), (x, 205), dashed=True)
        d.words(x, 22, text, anchor="middle", style="s q")
    d.words(10, 62, "old copy", style="b")
    d.words(10, 122, "new copy", style="b")
    d.words(10, 182, "requests", style="b")
    d.box(90, 40, 90, 34, "LOADING", color="amber")
    d.box(180, 40, 250, 34, "READY", color="green")
    d.box(430, 40, 110, 34, "UNLOADING", color="grey")
    d.box(290, 100, 140, 34, "LOADING", color="amber")
    d.box(430, 100, 280, 34, "READY", color="green")
    d.box(180, 160, 250, 34, "go to the old copy", color="blue")
    d.box(430, 160, 280, 34, "go to the new copy", color="blue")
    d.arrow((90, 215), (710, 215))
    d.words(704, 234, "time", anchor="end", style="s q")
    d.words(90, 234, "If the new copy cannot be loaded, the old one goes on serving", style="s q")
    return d


def shutdown() -> Drawing:
    """The order of the shutdown."""
    d = Drawing(720, 250, "The shutdown: clients first, then models, all under one deadline")
    for x, text in ((200, "SIGTERM"), (400, "no request left"), (530, "exit 0")):
        d.line((x, 25), (x, 208), dashed=True)
        d.words(x, 18, text, anchor="middle", style="s q")
    for y, text in ((52, "HTTP, gRPC"), (97, "metrics"), (142, "models"), (187, "control plane")):
        d.words(10, y, text, style="b")
    d.box(125, 33, 75, 30, "serve", color="green")
    d.box(200, 33, 200, 30, "answer what is open", color="amber")
    d.box(125, 78, 275, 30, "serve", color="green")
    d.box(125, 123, 275, 30, "serve", color="green")
    d.box(400, 123, 130, 30, "unload", color="amber")
    d.box(125, 168, 405, 30, "run", color="green")
    d.line((690, 25), (690, 208), dashed=True)
    d.words(710, 18, "--exit-timeout-secs", anchor="end", style="s q")
    d.arrow((125, 220), (710, 220))
    d.words(704, 240, "time", anchor="end", style="s q")
    d.words(125, 240, "New connections are refused from SIGTERM on. What is open at the deadline is cut off", style="s q")
    return d


def planes() -> Drawing:
    """The two planes and the store."""
    d = Drawing(720, 270, "The control plane writes what is desired, the data plane what is observed")
    d.frame(420, 20, 290, 110, "model-state store")
    d.box(435, 50, 125, 60, "desired\nwhat to serve", color="amber")
    d.box(570, 50, 125, 60, "observed\nwhat is served", color="green")
    d.box(10, 55, 120, 50, "model\nrepositories", color="grey")
    d.box(190, 45, 150, 70, "control plane\nwhich models?", color="blue")
    d.box(190, 185, 150, 70, "frontends\nHTTP, gRPC", color="blue")
    d.box(420, 185, 290, 70, "data plane\nschedulers, instances, backends", color="blue")
    d.box(10, 195, 120, 50, "clients", color="grey")
    d.arrow((130, 80), (190, 80))
    d.arrow((340, 80), (435, 80))
    d.arrow((497, 110), (497, 185))
    d.arrow((632, 185), (632, 110))
    d.arrow((130, 220), (190, 220))
    d.arrow((340, 220), (420, 220))
    d.arrow((265, 185), (265, 115))
    d.words(273, 155, "load, unload, index", style="s q")
    d.words(380, 213, "requests", style="s q", anchor="middle")
    d.words(160, 73, "scan", style="s q", anchor="middle")
    d.words(380, 73, "writes", style="s q", anchor="middle")
    d.words(505, 160, "is read by", style="s q")
    d.words(640, 160, "writes", style="s q")
    return d


PICTURES = (repository, request, batch, sequences, ensemble, swap, shutdown, planes)


def main() -> int:
    """Write or check all of them."""
    stale = []
    for make in PICTURES:
        file, text = FOLDER / f"{make.__name__}.svg", make().svg()
        if "--check" not in sys.argv:
            file.write_text(text, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(file.name)
    if stale:
        print(f"not as docs/pictures draws them: {', '.join(stale)}; run: make docs")
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
