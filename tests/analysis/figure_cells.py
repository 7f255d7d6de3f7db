"""What a heatmap shows, read back from its SVG: the plots' frames, and the colour of every cell as a
share of the colour scale."""

import re
import xml.etree.ElementTree as ElementTree

import numpy as np

SVG = "{http://www.w3.org/2000/svg}"
VIRIDIS = ["440154", "472D7B", "3B528B", "2C728E", "21918C", "28AE80", "5EC962", "ADDC30", "FDE725"]
LEVELS = 256  # colours of a scale
POINT = re.compile(r"(-?[\d.]+),(-?[\d.]+)")


def palette():
    stops = np.array([[int(c[i:i + 2], 16) for i in (0, 2, 4)] for c in VIRIDIS], float)
    at = np.linspace(0, len(stops) - 1, LEVELS)
    return np.stack([np.interp(at, range(len(stops)), stops[:, i]) for i in range(3)], -1)


def points(text):
    return np.array(POINT.findall(text), float)


def frames_of(root):
    """Boxes (left, top, right, bottom) that a closed black line runs around, in drawing order."""
    boxes = []
    for path in root.iter(SVG + "path"):
        corners = points(path.get("d", ""))
        if path.get("stroke") and path.get("d", "").rstrip().endswith("Z") and len(corners) == 5:
            box = (*corners.min(0), *corners.max(0))
            if box not in boxes:
                boxes.append(box)
    return boxes


def heatmaps(path, shape):
    """[plot, row, column] of values from 0 to 1, NaN where nothing is drawn; shape: (rows, columns)
    of a plot."""
    root = ElementTree.parse(path).getroot()
    boxes, colours = frames_of(root), palette()
    plots = np.full((len(boxes), *shape), np.nan)
    for drawn in [*root.iter(SVG + "path"), *root.iter(SVG + "polygon")]:
        fill = re.findall(r"\d+", drawn.get("fill", "")) if "rgb" in drawn.get("fill", "") else []
        if not fill:
            continue
        far = np.abs(colours - np.array(fill, float)).sum(-1)
        assert far.min() < 8, f"{path}: {fill} is not in the palette"
        for cell in filter(str.strip, re.split("[zZ]", drawn.get("d") or drawn.get("points"))):
            x, y = (points(cell).min(0) + points(cell).max(0)) / 2
            for plot, (left, top, right, bottom) in enumerate(boxes):
                if left < x < right and top < y < bottom:
                    row = int((y - top) / (bottom - top) * shape[0])
                    column = int((x - left) / (right - left) * shape[1])
                    assert np.isnan(plots[plot, row, column]), f"{path}: two colours in a cell"
                    plots[plot, row, column] = (far.argmin() + 0.5) / LEVELS
    return plots
