"""Draw a page to read. Use: python page.py FILE"""

import sys

from PIL import Image, ImageDraw, ImageFont

PAPER = (250, 248, 240)
LINES = (
    ("Inference Server", 30, 48, (20, 20, 60)),
    ("Invoice No. 2026-1121", 120, 32, (0, 0, 0)),
    ("Total: $1,234.56", 180, 36, (150, 0, 0)),
    ("Thank you for your order!", 250, 28, (0, 90, 0)),
)
"""Text, distance from the top and height in pixels, colour."""

page = Image.new("RGB", (640, 320), PAPER)
for text, top, height, colour in LINES:
    ImageDraw.Draw(page).text((40, top), text, colour, ImageFont.load_default(height))

stamp = Image.new("RGB", (240, 44), PAPER)
ImageDraw.Draw(stamp).text((20, 6), "upside down", (0, 0, 0), ImageFont.load_default(30))
page.paste(stamp.rotate(180), (380, 178))
page.save(sys.argv[1])
