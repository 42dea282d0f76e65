"""Plots as SVG: a frame with two axes, and what is drawn into it."""
import math


class Axis:
    """Maps values to coordinates between those of the first and the last tick. `ticks`: values and their texts."""

    def __init__(self, name, ticks, log=False):
        self.name, self.ticks, self.log = name, dict(ticks), log
        self.least, self.most = min(self.ticks), max(self.ticks)

    def share(self, value):
        if self.log:
            return math.log(value / self.least) / math.log(self.most / self.least)
        return (value - self.least) / (self.most - self.least)


class Plot:
    def __init__(self, x, y, width=720, height=420, left=70, right=110, top=40, bottom=60):
        self.x, self.y, self.width, self.height = x, y, width, height
        self.left, self.right, self.top, self.bottom = left, width - right, top, height - bottom
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                      f'height="{height}" font-family="sans-serif" font-size="12" fill="#222">',
                      f'<rect width="{width}" height="{height}" fill="white"/>']
        for value, name in x.ticks.items():
            self.path([(value, y.least), (value, y.most)], 'stroke="#ddd"')
            self.text(self.x_of(value), self.bottom + 16, name, 'text-anchor="middle"')
        for value, name in y.ticks.items():
            self.path([(x.least, value), (x.most, value)], 'stroke="#ddd"')
            self.text(self.left - 8, self.y_of(value) + 4, name, 'text-anchor="end"')
        self.text(self.middle, self.bottom + 34, x.name, 'text-anchor="middle"')
        self.text(self.left - 40, self.top - 12, y.name)

    @property
    def middle(self):
        return (self.left + self.right) / 2

    def x_of(self, value):
        return self.left + self.x.share(value) * (self.right - self.left)

    def y_of(self, value):
        return self.bottom - self.y.share(value) * (self.bottom - self.top)

    def text(self, x, y, content, attributes=""):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" {attributes}>{content}</text>')

    def path(self, points, attributes):
        steps = "L".join(f"{self.x_of(x):.1f} {self.y_of(y):.1f}" for x, y in points)
        self.parts.append(f'<path d="M{steps}" fill="none" {attributes}/>')

    def dot(self, x, y, attributes):
        self.parts.append(f'<circle cx="{self.x_of(x):.1f}" cy="{self.y_of(y):.1f}" {attributes}/>')

    def end(self):
        return "\n".join([*self.parts, "</svg>"]) + "\n"
