#!/usr/bin/env python3
"""page.py runs A B: writes two runs. page.py check BROWSER PAGE FOLDER: opens a page in a browser without a window, and
checks that it asks for nothing else, has no error, fits a phone, is dark in the dark and can be printed. Leaves a
picture of each in FOLDER."""
import base64
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

import websocket


def write_run(path, lr):
    with open(path, "w") as out:
        header = {"run": path[-9:], "started": "2026-03-01T09:30:00Z", "model": "a-model", "parameters": 985472,
                  "world_size": 2, "steps": 2000,
                  "settings": {"optimizer.lr": str(lr), "data.path": "/a/very/long/path/" + "x" * 200}}
        out.write(json.dumps(header) + "\n")
        for step in range(1, 2001):
            loss = 2 + 3 * math.exp(-step * lr) + 0.2 * math.sin(step * 7919)
            out.write(json.dumps({"step": step, "loss": None if step == 700 else loss, "grad_norm": loss * lr * 9,
                                  "tokens_per_second": 1e6 / (100 + step % 7), "step_ms": 100 + step % 7,
                                  "memory_peak_bytes": 3e9 + step, "all_gather": 9}) + "\n")
            if step % 200 == 0:
                out.write(json.dumps({"validation": step, "loss": loss + 0.3}) + "\n")


class Browser:
    def __init__(self, program, profile):
        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
             "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = os.path.join(profile, "DevToolsActivePort")
        while not os.path.exists(port_file) or not open(port_file).read().strip():
            if self.process.poll() is not None:
                sys.exit("the browser does not start")
            time.sleep(0.05)
        port = open(port_file).read().split()[0]
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
        page = next(p for p in pages if p["type"] == "page")
        self.socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=300)
        self.number = 0
        self.events = []

    def call(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.number:
                if "error" in message:
                    sys.exit(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def wait_for(self, method):
        while not any(e.get("method") == method for e in self.events):
            self.events.append(json.loads(self.socket.recv()))

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def picture(self, path):
        height = self.value("document.documentElement.scrollHeight")
        width = self.value("innerWidth")
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})
        open(path, "wb").write(base64.b64decode(shot["data"]))

    def close(self):
        self.process.kill()
        self.process.wait()


def require(condition, what):
    if not condition:
        sys.exit("page.py: " + what)


def check(browser, page, folder):
    for domain in ("Page", "Network", "Runtime", "Log"):
        browser.call(domain + ".enable")
    browser.call("Page.navigate", url="file://" + os.path.abspath(page))
    browser.wait_for("Page.loadEventFired")
    grounds = {}
    for name, width, scheme in (("desk", 1280, "light"), ("phone", 390, "light"), ("dark", 1280, "dark")):
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1,
                     mobile=width < 600)
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        require(browser.value("document.documentElement.scrollWidth == innerWidth"), f"{name}: it is wider than {width}")
        require(browser.value("[...document.querySelectorAll('svg')].filter(s => s.clientWidth > 0)"
                              ".every(s => s.getBoundingClientRect().right <= innerWidth)"),
                f"{name}: a chart is cut off")
        grounds[name] = browser.value("getComputedStyle(document.body).backgroundColor")
        browser.picture(os.path.join(folder, name + ".png"))
    require(grounds["desk"] == grounds["phone"] != grounds["dark"], f"it is not dark in the dark: {grounds}")
    shown = "[...document.querySelectorAll('svg')].filter(s => s.clientWidth > 0).length"
    before = browser.value(shown)
    browser.value("document.getElementById('log').click()")
    require(before > 3 and browser.value(shown) == before, "each chart has one picture on either scale")
    require(browser.value("getComputedStyle(document.querySelector('.linear')).display") == "none",
            "the logarithmic scale is not shown")
    browser.picture(os.path.join(folder, "logarithmic.png"))
    pdf = base64.b64decode(browser.call("Page.printToPDF")["data"])
    require(pdf.startswith(b"%PDF") and len(pdf) > 10000, "it cannot be printed")
    open(os.path.join(folder, "paper.pdf"), "wb").write(pdf)
    asked = [e["params"]["request"]["url"] for e in browser.events if e.get("method") == "Network.requestWillBeSent"]
    require(len(asked) == 1, f"it asks for more than itself: {asked}")
    wrong = [e for e in browser.events
             if e.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")]
    require(not wrong, f"the browser complains: {wrong}")


def main():
    if sys.argv[1] == "runs":
        write_run(sys.argv[2], 0.003)
        write_run(sys.argv[3], 0.01)
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(sys.argv[2], profile)
        try:
            check(browser, sys.argv[3], sys.argv[4])
        finally:
            browser.close()


main()
