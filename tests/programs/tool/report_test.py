"""Draws runs, and looks at the pages and the pictures: report_test.py PATH_OF_TUTTI [unittest arguments].
With the argument BROWSER before them it looks with that browser; where there is none it exits with 77."""
import html.parser
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from driver import Program, main

SVG = "{http://www.w3.org/2000/svg}"
FONT_SIZE = 12
EVIL = "<script>document.title='evil'</script><img src=http://example.com/x.png>\"'&\u2028"
# Measures what is drawn, and lists what the page has loaded.
MEASURE = """<script>
addEventListener("load", () => {
  const outside = [];
  let texts = 0;
  for (const font of ["", "DejaVu Sans", "Liberation Sans"]) {
    for (const svg of document.querySelectorAll("svg.figure")) {
      const frame = svg.viewBox.baseVal;
      for (const text of svg.querySelectorAll("text")) {
        if (font) text.style.fontFamily = font;
        const box = text.getBBox();
        ++texts;
        if (box.x < 0 || box.y < 0 || box.x + box.width > frame.width || box.y + box.height > frame.height)
          outside.push([text.firstChild.data, box.x, box.y, box.width, box.height]);
      }
    }
  }
  const result = {outside, texts, wide: document.body.scrollWidth > document.documentElement.clientWidth,
                  loaded: performance.getEntriesByType("resource").map(entry => entry.name),
                  title: document.title};
  document.documentElement.replaceChildren(document.createTextNode("<<" + JSON.stringify(result) + ">>"));
});
</script>"""


class Tags(html.parser.HTMLParser):
    """The open tags and their attributes; whether every tag is closed."""

    VOID = {"meta", "br", "img", "link", "input"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (self.open, tag)
        self.open.pop()

    def handle_data(self, data):
        self.texts.append(data)


class Drawn(Program):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.path = pathlib.Path(cls.folder.name)
        make = cls()
        quick = ["--min-time", "1ms", "--warmup", "1", "--samples", "all"]
        make.runs("bench", "-n", 2, "--backend", "local", "-s", "8:1M:x8", *quick, "--out", cls.path / "two.json",
                  "--out", cls.path / "two.svg", "--out", cls.path / "two.html")
        make.runs("bench", "-n", 1, "--backend", "local", "-s", "1K,1M", *quick, "--out", cls.path / "alone.json")
        make.runs("bench", "all", "-n", 3, "--backend", "local", "-s", "12K", "-d", "f32,bf16", *quick, "--out",
                  cls.path / "all.json")
        # Six runs: other backends, a name that is not text but markup, many ranks, times of very different sizes.
        cls.six = []
        for i in range(6):
            run = json.loads((cls.path / "two.json").read_text())
            run["backend"]["name"] = ["local", "shm", "gloo", EVIL, "x" * 90, "漢字" * 30][i]
            run["config"]["min_time_s"] = i
            run["env"] = {"TUTTI_CHECK": "1", "NCCL_ALGO": EVIL} if i == 3 else {"TUTTI_CHECK": "1"}
            run["argv"] += [EVIL]
            for row in run["results"]:
                row["time_us"] = {name: value * 10 ** (i - 3) if name != "n" else value
                                  for name, value in row["time_us"].items()}
                row["time_us_rank_mean"] = [1 + rank % 7 for rank in range(2 + 20 * i)]
            cls.six.append(cls.path / f"{i}.json")
            cls.six[-1].write_text(json.dumps(run))
        for name, files in {"two": ["two.json"], "alone": ["alone.json"], "all": ["all.json"], "six": cls.six}.items():
            for ending in ("svg", "html"):
                make.runs("report", *(cls.path / file for file in files), "-o", cls.path / f"{name}_again.{ending}")

    def runTest(self):
        """Lets setUpClass() make one."""

    def files(self, ending):
        found = sorted(self.path.glob(f"*.{ending}"))
        self.assertGreaterEqual(len(found), 4)
        return found


class Report(Drawn):
    def check_picture(self, svg):
        """All is within the frame, by the place of each text and a rough width."""
        _, _, width, height = map(float, svg.get("viewBox").split())
        self.assertGreater(len(svg.findall(f".//{SVG}text")), 0)
        for text in svg.iter(f"{SVG}text"):
            x, y = float(text.get("x")), float(text.get("y"))
            length = sum(1 if ord(c) > 0x2E80 else 0.5 for c in text.text or "") * FONT_SIZE
            before = {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor")] * length
            self.assertGreaterEqual(x - before, 0, text.text)
            self.assertLessEqual(x - before + length, width, text.text)
            self.assertTrue(FONT_SIZE <= y <= height - 2, (y, height, text.text))
        for mark in svg.iter(f"{SVG}circle"):
            self.assertTrue(0 <= float(mark.get("cx")) <= width and 0 <= float(mark.get("cy")) <= height)
        for path in svg.iter(f"{SVG}path"):
            for x, y in re.findall(r"[ML](\S+) ([\d.]+)", path.get("d")):
                self.assertTrue(0 <= float(x) <= width and 0 <= float(y) <= height, path.get("d"))

    def test_pictures_are_well_formed_and_load_nothing(self):
        for file in self.files("svg"):
            with self.subTest(file=file.name):
                text = file.read_text()
                root = xml.etree.ElementTree.fromstring(text)
                self.check_picture(root)
                tags = {element.tag.removeprefix(SVG) for element in root.iter()}
                self.assertLessEqual(tags, {"svg", "title", "style", "rect", "text", "path", "circle"})
                names = {name for element in root.iter() for name in element.keys()}
                self.assertFalse({name for name in names if name.startswith("on") or "href" in name}, names)
                self.assertNotIn("url(", root.find(f"{SVG}style").text)
                self.assertNotIn("@import", root.find(f"{SVG}style").text)

    def test_pages_are_complete_and_load_nothing(self):
        for file in self.files("html"):
            with self.subTest(file=file.name):
                text = file.read_text()
                page = Tags(text)
                names = {name for name, _ in page.tags}
                self.assertFalse(names & {"script", "img", "link", "iframe", "object", "form", "base"}, names)
                for name, attributes in page.tags:
                    self.assertFalse([a for a in attributes if a in ("src", "style") or a.startswith("on")], name)
                    self.assertTrue(attributes.get("href", "#").startswith("#"), attributes)
                self.assertNotRegex(text, r"url\(|@import")
                self.assertIn("default-src 'none'", text)
                for picture in re.findall(r"<svg.*?</svg>", text, re.S):
                    self.check_picture(xml.etree.ElementTree.fromstring(picture))

    def test_a_run_is_drawn_as_its_file_is(self):
        self.assertEqual((self.path / "two.svg").read_text(), (self.path / "two_again.svg").read_text())
        file = f"{self.path / 'two.json'}"
        again = (self.path / "two_again.html").read_text().replace(f", {file}</li>", "</li>")
        again = again.replace(f"<tr><th>file</th><td>{file}</td></tr>\n", "")
        self.assertEqual((self.path / "two.html").read_text(), again)

    def test_the_page_has_the_numbers_of_the_runs(self):
        text = (self.path / "two.html").read_text()
        rows = re.findall(r"<tr><td>(.*?)</td><td class=left>local</td><td>(.*?)</td>", text)
        run = json.loads((self.path / "two.json").read_text())
        self.assertEqual([size for size, _ in rows], ["8 B", "64 B", "512 B", "4 KiB", "32 KiB", "256 KiB"])
        for (_, shown), row in zip(rows, run["results"], strict=True):
            self.assertAlmostEqual(float(shown), row["time_us"]["p50"], delta=0.06)
        self.assertEqual(text.count("<svg"), 4)  # Time, bandwidth, iterations, ranks.
        self.assertEqual((self.path / "alone_again.html").read_text().count("<svg"), 2)  # No bandwidth, no ranks.

    def test_runs_are_overlaid_and_their_differences_listed(self):
        text = (self.path / "six_again.html").read_text()
        different, same = text.split("Differences</h2>")[1].split("Equal in all runs</h2>")
        for name, table in (("config min_time_s", different), ("NCCL_ALGO", different), ("backend", different),
                            ("TUTTI_CHECK", same), ("config seed", same)):
            self.assertIn(f"<th>{name}</th>", table)
        self.assertNotIn("TUTTI_CHECK", different)
        first = re.search(r"<svg.*?</svg>", text, re.S)[0]
        self.assertEqual(len(re.findall(r'class="line c[0-5]"', first)), 12)  # Six lines, six beside their names.
        self.assertEqual(len(re.findall(r'class="band c[0-5]"', first)), 6)
        self.assertNotIn("<script", text)
        self.assertIn("&lt;script&gt;", text)

    def test_what_cannot_be_drawn_is_refused(self):
        two, out = self.path / "two.json", self.path / "out.html"
        self.refuses(64, ["report", "-o", out], "no file")
        self.refuses(64, ["report", two], "-o", ".html or .svg")
        self.refuses(64, ["report", two, "-o", "x.pdf"], "x.pdf", ".html or .svg")
        self.refuses(64, ["report", *[two] * 7, "-o", out], "7 files", "at most 6")
        self.refuses(64, ["report", self.path / "none.json", "-o", out], "none.json")
        self.refuses(64, ["report", self.path / "two.svg", "-o", out], "two.svg")
        self.assertFalse(out.exists())
        self.refuses(64, ["bench", "-n", 1, "-s", "8", "--out", "x.png"], ".svg or .html")
        self.refuses(64, ["bench", "step", "-n", 1, "--out", "x.svg"], "x.svg", "or .md")
        self.refuses(64, ["bench", "step", "-n", 1, "-f", "html"], "html")


class InBrowser(Drawn):
    """Measures with the browser's fonts."""

    def look(self, page, *options):
        """The page's DOM, and its messages."""
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--enable-logging=stderr",
             f"--user-data-dir={self.path / 'profile'}", *options, "--dump-dom", page.as_uri()],
            text=True, capture_output=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def test_texts_stay_in_their_frames_and_nothing_is_loaded(self):
        pages = [file.read_text() for file in self.files("html")]
        head = re.sub(r"<meta http-equiv.*?>\n", "", pages[0].split("<body>")[0])  # It would forbid the script.
        bodies = [re.search(r"<body>(.*)</body>", page, re.S)[1] for page in pages]
        pictures = ["<div class=table>" + file.read_text() + "</div>" for file in self.files("svg")]
        # What is outside must be found.
        broken = '<svg class="figure" viewBox="0 0 50 20"><text x="20" y="15">outside</text></svg>'
        copy = self.path / "copy.htm"
        copy.write_text("\n".join([head, "<body>", *bodies, *pictures, broken, MEASURE, "</body></html>"]))
        dom, _ = self.look(copy, "--window-size=400,800")
        found = re.search(r"&lt;&lt;(.*)&gt;&gt;", dom, re.S)
        self.assertIsNotNone(found, dom)
        result = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
        self.assertGreater(result["texts"], 1000)
        self.assertEqual({text for text, *_ in result["outside"]}, {"outside"}, result["outside"])
        self.assertEqual(result["loaded"], [])
        self.assertEqual(result["title"], "tutti report")
        self.assertFalse(result["wide"], "the page scrolls sideways")

    def test_the_page_as_it_is_has_no_errors(self):
        broken = self.path / "broken.htm"
        broken.write_text("<svg></svg><script>nothing()</script>")
        for file in (self.path / "six_again.html", self.path / "all_again.svg", broken):
            with self.subTest(file=file.name):
                dom, messages = self.look(file)
                self.assertIn("</svg>", dom)
                self.assertEqual(bool(messages), file == broken, messages)


if __name__ == "__main__":
    if sys.argv[1:2] == ["BROWSER"]:
        sys.argv.pop(1)
        BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        if BROWSER is None:
            print("no chromium, chromium-browser or google-chrome here: the report was not looked at in a browser")
            sys.exit(77)
        del Report
    else:
        del InBrowser
    del Drawn
    main()
