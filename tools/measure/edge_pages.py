"""The parts of tools/measure/edge-pages in Python.

    edge_pages.py site WORK
        Writes the page to WORK/www, and its headers and redirects for Caddy to WORK/headers. Prints the number of hosts.
    edge_pages.py measure WORK COUNT RIGHT
        Loads the page COUNT times with each arm and prints the results. RIGHT is the namespace of the server.
"""
import base64
import hashlib
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

# Name, HTTP version in Caddy's log, port on the server, address of the client in Caddy's log.
ARMS = [("h2, CUBIC", "HTTP/2.0", 443, "10.77.0.1"), ("h2, BBR", "HTTP/2.0", 443, "10.77.0.1"),
        ("h2, edge", "HTTP/2.0", 8443, "127.0.0.1"), ("h3", "HTTP/3.0", 443, "10.77.0.1")]
EDGE = 2
# Script in every document: `k` loads objects and then their children, as in `brisk lab browse`.
PRELUDE = """<link rel=icon href=data:,><script>function k(l){for(const [t,u,c] of l){let e;
if(t=='js'){e=document.createElement('script');e.src=u}
else if(t=='css'){e=document.createElement('link');e.rel='stylesheet';e.href=u}
else if(t=='html'){e=document.createElement('iframe');e.src=u}
else{e=new Image(24,18);e.src=u}
if(c)e.onload=e.onerror=()=>k(c);(document.body||document.head).append(e)}}</script>"""
PIXEL = base64.b64decode("R0lGODlhAQABAIAAAJmqu////ywAAAAAAQABAAACAkQBADs=")


class Page:
    """A page skeleton (crates/lab/src/pages/skeleton.rs) as files, like crates/lab/src/browse/site.rs but without heads."""

    def __init__(self):
        if "PAGES" in os.environ:
            pages = {page["label"]: page for page in map(json.loads, open(os.environ["PAGES"]))}
            self.label = os.environ.get("PAGE", "")
            if self.label not in pages:
                sys.exit(f"PAGE={self.label} is not in {os.environ['PAGES']}; there are: {', '.join(pages)}")
            rows = [row[:4] + [row[7]] for row in pages[self.label]["res"]]
        else:
            self.label = "generated page"
            rows = [[0, "html", -1, "nav", 5000]]
            rows += [[0, "js", 0, "parser", 5000 + n * 7919 % 25000] for n in range(1, 41)]
        self.hosts = [row[0] for row in rows]
        self.parents = [row[2] if 0 <= row[2] < n else 0 for n, row in enumerate(rows)]
        self.sizes = [max(int(row[4] or 0), 0) for row in rows]
        self.target = {}
        for n, row in enumerate(rows):
            if n and row[3] == "redirect":
                self.target.setdefault(self.parents[n], n)
        self.kinds = [row[1] if row[1] in ("html", "js", "css") else "gif" for row in rows]
        self.kinds[self.final(0)] = "html"

    def final(self, n):
        while n in self.target:
            n = self.target[n]
        return n

    def path(self, n):
        return f"/{n}" if n in self.target else f"/{n}.{self.kinds[n]}"

    def url(self, n):
        return f"https://h{self.hosts[n]}.test{self.path(n)}"

    def children(self, n):
        """The objects that an object loads: its own, and those of objects that redirect to it."""
        sources = [n]
        while self.target.get(self.parents[sources[-1]]) == sources[-1]:
            sources.append(self.parents[sources[-1]])
        return [child for child in range(1, len(self.hosts))
                if self.parents[child] in sources and self.target.get(self.parents[child]) != child]

    def items(self, n):
        """The argument of `k` for the children."""
        return [[self.kinds[self.final(child)], self.url(child), self.after(child)] for child in self.children(n)]

    def after(self, n):
        """What loads when the element has loaded. The content of documents and scripts loads their children."""
        end = self.final(n)
        return self.items(end) if self.kinds[end] in ("gif", "css") else []

    def element(self, n):
        then = self.after(n)
        then = f" onload='k({json.dumps(then)})'" if then else ""
        return {"html": f"<iframe src={self.url(n)} width=90 height=60></iframe>",
                "js": f"<script src={self.url(n)}></script>",
                "css": f"<link rel=stylesheet href={self.url(n)}{then}>",
                "gif": f"<img src={self.url(n)} width=24 height=18{then}>"}[self.kinds[self.final(n)]]

    def body(self, n):
        size, kind = self.sizes[n], self.kinds[n]
        if kind == "html":
            children = self.children(n)
            head = 0
            while head < len(children) and self.kinds[self.final(children[head])] in ("css", "js"):
                head += 1
            elements = [self.element(child) for child in children]
            pieces = [f"<!doctype html><meta charset=utf-8><title>{self.label}</title>{PRELUDE}", *elements[:head],
                      f"<body><h1>{self.label}</h1>", *elements[head:]]
            gap = (size - sum(map(len, pieces))) // len(pieces) - len("<!---->")
            filler = f"<!--{'.' * gap}-->" if gap >= 0 else ""
            return (filler.join(pieces) + filler).ljust(size).encode()
        if kind == "gif":
            return PIXEL.ljust(size, b"\0")
        script = f"k({json.dumps(self.items(n))});" if kind == "js" and self.children(n) else ""
        return (f"{script}/*{'-' * (size - len(script) - 4)}*/" if size > len(script) + 4 else script.ljust(size)).encode()

    def write(self, work):
        with open(f"{work}/headers", "w") as headers:
            # Caddy's Alt-Svc has an entry for each of its addresses.
            headers.write("header {\n    Cache-Control no-store\n    -Alt-Svc\n}\n")
            for n in range(len(self.hosts)):
                if n in self.target:
                    headers.write(f"redir {self.path(n)} {self.url(self.target[n])} 302\n")
                else:
                    with open(f"{work}/www{self.path(n)}", "wb") as file:
                        file.write(self.body(n))


class Driver:
    """Chromium through chromedriver (W3C WebDriver)."""

    def __init__(self, work, hosts):
        said = open(f"{work}/chromedriver", "w+")
        self.process = subprocess.Popen(["chromedriver", "--port=0"], stdout=said, stderr=subprocess.DEVNULL)
        while not (port := re.search(r"on port (\d+)\.", open(said.name).read())):
            if self.process.poll() is not None:
                sys.exit("chromedriver does not start")
            time.sleep(0.05)
        self.root = f"http://127.0.0.1:{port[1]}"
        self.hosts = hosts
        key = subprocess.run(f"openssl x509 -in {work}/cert.pem -noout -pubkey | openssl pkey -pubin -outform der",
                             shell=True, check=True, capture_output=True).stdout
        self.spki = base64.b64encode(hashlib.sha256(key).digest()).decode()

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.root + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            raise OSError(json.load(error)["value"]["message"].split("\n")[0]) from error

    def open(self, arm, profile):
        name, _, port, _ = ARMS[arm]
        rules = [f"MAP h{host}.test 10.8{arm}.0.{host + 1}:{port}" for host in range(self.hosts)]
        origins = ",".join(f"h{host}.test:443" for host in range(self.hosts))
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--window-size=1280,900",
                 f"--user-data-dir={profile}", f"--ignore-certificate-errors-spki-list={self.spki}",
                 f"--host-resolver-rules={','.join(rules)},MAP * ~NOTFOUND,EXCLUDE 127.0.0.1",
                 f"--origin-to-force-quic-on={origins}" if name == "h3" else "--disable-quic"]
        options = {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"}, "goog:chromeOptions": {"args": flags}}
        self.session = "/session/" + self.call("POST", "/session", {"capabilities": {"alwaysMatch": options}})["sessionId"]
        self.call("POST", self.session + "/timeouts", {"pageLoad": 60000})

    def script(self, text):
        return self.call("POST", self.session + "/execute/sync", {"script": text, "args": []})

    def load(self, url):
        """Returns the ms until the load event and until the first byte of the document; (None, None) without such an event."""
        try:
            self.call("POST", self.session + "/url", {"url": url})
        except OSError as error:
            print(f"{url}: {error}", file=sys.stderr)
            return None, None
        for _ in range(40):
            took = self.script("const t=performance.getEntriesByType('navigation')[0];return [t.loadEventEnd,t.responseStart]")
            if took[0]:
                return took
            time.sleep(0.025)
        return None, None

    def close_connections(self):
        self.call("POST", self.session + "/url", {"url": "chrome://net-internals/#sockets"})
        self.script("document.querySelector('#sockets-view-flush-button').click()")
        time.sleep(0.5)

    def errors(self):
        return [line["message"] for line in self.call("POST", self.session + "/se/log", {"type": "browser"})
                if line["level"] == "SEVERE"]


def sent(right):
    """The bytes that each end has sent, lost packets included: those of the browser and those of the server."""
    def of(*where):
        lines = subprocess.run([*where, "cat", "/proc/net/dev"], check=True, capture_output=True, text=True).stdout
        return int(re.search(r"brisk0:(.*)", lines)[1].split()[8])
    return of(), of("ip", "netns", "exec", right)


def measure(page, work, count, right):
    driver = Driver(work, max(page.hosts) + 1)
    access = open(f"{work}/access.log")
    loads = {(case, arm): [] for case in ("cold", "warm") for arm in range(len(ARMS))}

    def load(case, arm, before):
        """Loads the page once; returns the connections. `before` is those that must not be used again."""
        name, version, _, client = ARMS[arm]
        bytes_before = sent(right)
        took, first = driver.load(page.url(0))
        time.sleep(0.3)
        up, down = (after - before for before, after in zip(bytes_before, sent(right)))
        requests = [json.loads(line) for line in access]
        for request in requests:
            got = request["request"]["proto"], request["request"]["remote_ip"]
            if got != (version, client):
                sys.exit(f"{name}: {request['request']['uri']} came with {got[0]} from {got[1]}, not {version} from {client}")
        connections = {(request["request"]["host"], request["request"]["remote_port"]) for request in requests}
        # A new connection can have the port of an old one by chance.
        if 2 * len(connections & before) > len(connections):
            sys.exit(f"{name}: the connections of the cold load were not closed")
        arrived = {request["request"]["uri"] for request in requests if request["status"] in (200, 302)}
        if page.path(0) not in arrived:
            took = None  # the browser has loaded a page of its own that shows an error
        errors = driver.errors()
        for error in errors:
            print(f"{name}, {case}: {error}", file=sys.stderr)
        failed = max(len(page.hosts) - len(arrived), len(errors)) if took else len(page.hosts)
        loads[case, arm].append((took, failed, first, len(connections), up / 1000, down / 1000))
        return connections

    try:
        # In round 0, which is not counted, the servers learn the path. Each round begins with another arm.
        for turn in range(count + 1):
            for arm in ((n + turn) % len(ARMS) for n in range(len(ARMS))):
                with tempfile.TemporaryDirectory(dir=work, ignore_cleanup_errors=True) as profile:
                    driver.open(arm, profile)
                    connections = load("cold", arm, set())
                    driver.close_connections()
                    load("warm", arm, connections)
                    if turn == count and arm == EDGE and "PICTURE" in os.environ:
                        with open(os.environ["PICTURE"], "wb") as file:
                            file.write(base64.b64decode(driver.call("GET", driver.session + "/screenshot")))
                    driver.call("DELETE", driver.session)
    finally:
        driver.process.terminate()
    report({key: of[1:] for key, of in loads.items()})


def report(loads):
    random.seed(1)
    for case in ("cold", "warm"):
        rows = [loads[case, arm] for arm in range(len(ARMS))]
        times = [sorted(load[0] for load in row if load[0]) for row in rows]
        if not all(times):
            sys.exit("an arm has no complete load")
        better = min((0, 1), key=lambda arm: statistics.mean(times[arm]))
        print(f"\n{case:10} {'n':>3} {'failed':>6} {'first':>5} {'p50':>5} {'mean':>5} {'p95':>5}   {'change of mean, %':22} "
              f"{'change of p50, %':22} {'conns':>5} {'kB up':>5} {'down':>5}")
        for arm, row in enumerate(rows):
            pairs = [(base[0], own[0]) for base, own in zip(rows[better], row) if base[0] and own[0]]
            changes = [f"{'-' if arm == better else change(pairs, of):22}" for of in (statistics.mean, statistics.median)]
            first = statistics.median(load[2] for load in row if load[0])
            connections, up, down = (statistics.mean(column) for column in list(zip(*row))[3:])
            p95 = times[arm][math.ceil(0.95 * len(times[arm])) - 1]
            p50, mean = statistics.median(times[arm]), statistics.mean(times[arm])
            print(f"{ARMS[arm][0]:10} {len(times[arm]):3} {sum(load[1] for load in row):6} {first:5.0f} "
                  f"{p50:5.0f} {mean:5.0f} {p95:5.0f}   {' '.join(changes)} {connections:5.1f} {up:5.0f} {down:5.0f}")


def change(pairs, of):
    """The change of the statistic `of` from the first to the second of each pair, with its interval."""
    def percent(pairs):
        return 100 * (of([own for _, own in pairs]) / of([base for base, _ in pairs]) - 1)
    drawn = sorted(percent(random.choices(pairs, k=len(pairs))) for _ in range(2000))
    return f"{percent(pairs):+.1f} ({drawn[50]:+.1f} to {drawn[1949]:+.1f})"


page = Page()
if sys.argv[1] == "site":
    page.write(sys.argv[2])
    print(max(page.hosts) + 1)
else:
    print(f"{page.label}: {len(page.hosts)} objects on {max(page.hosts) + 1} hosts, {sum(page.sizes)} bytes of bodies")
    measure(page, sys.argv[2], int(sys.argv[3]), sys.argv[4])
