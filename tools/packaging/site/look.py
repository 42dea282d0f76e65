"""Opens every page of a site in Chromium, and finds those that scroll sideways or load something from another host.

usage: look.py FOLDER [SHOTS]

With SHOTS it puts pictures of some pages into this folder instead, at the widths of a desktop and a telephone, light
and dark. It needs Debian's chromium and the Python package playwright."""
import pathlib
import shutil
import sys

from playwright.sync_api import sync_playwright

WIDTHS = (1280, 420)
SHOWN = ("index", "docs/losses", "docs/environment", "docs/performance", "docs/examples/09_global_smooth_ap/index",
         "docs/examples/20_seeds/index", "reference/python", "reference/cxx/classtutti_1_1ProcessGroup",
         "reference/cxx/index", "reference/cxx/tutti_8h")
OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"


def measure(browser, site):
    """Yields the faults of all pages."""
    for width in WIDTHS:
        page = browser.new_page(viewport={"width": width, "height": 900})
        loaded, faults = [], []
        page.on("request", lambda request: loaded.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        for path in sorted(site.rglob("*.html")):
            page.goto(path.as_uri())
            excess = page.evaluate(OVERFLOW)
            if excess > 0:
                faults.append(f"scrolls sideways by {excess} pixels")
            faults += [f"loads {url}" for url in loaded if not url.startswith(("file:", "data:", "blob:"))]
            yield from (f"{path.relative_to(site)}: {width} pixels wide: {fault}" for fault in faults)
            loaded.clear(), faults.clear()
        page.close()


def take_pictures(browser, site, shots):
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            for name in SHOWN:
                page.goto((site / f"{name}.html").as_uri())
                page.wait_for_timeout(300)
                page.screenshot(path=shots / f"{name.replace('/', '-')}-{width}-{scheme}.png")
            page.close()


if __name__ == "__main__":
    folder, *pictures = [pathlib.Path(name).resolve() for name in sys.argv[1:3]]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"))
        if pictures:
            take_pictures(chromium, folder, *pictures)
        found = [] if pictures else list(measure(chromium, folder))
        chromium.close()
    print("\n".join(found) or "clean")
    sys.exit(1 if found else 0)
