"""Run the example: a job, 2,000 orders, and a worker that is killed halfway and started again. Then query the tables.

`.venv/bin/python docs/examples/coffee_bar/play.py` exits with 1 if the tables do not account for every delivery.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
POPSTREAM = Path(sys.executable).with_name("popstream")
ORDERS = 2_000
FAILING_EVERY = 20
SLOW_EVERY = 150
KILLED_AFTER = 500
TIMEOUT_S = 300


def orders() -> str:
    """Return orders as JSON lines: some fail at their first attempt, some take longer than a lease."""
    return "\n".join(
        json.dumps(
            {
                "number": number,
                "fails": 1 if number % FAILING_EVERY == 0 else 0,
                "takes_s": 12 if number % SLOW_EVERY == 1 else 0.002,
            }
        )
        for number in range(ORDERS)
    )


class Bar:
    """A job in a folder of its own, and the commands that talk to it."""

    def __init__(self, folder: Path, var: Path) -> None:
        self._options = ["--folder", str(folder)]
        self._var = ["--var", str(var)]
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._job = subprocess.Popen([POPSTREAM, "up", *self._options, *self._var], stdout=subprocess.PIPE, text=True)
        for line in self._job.stdout or ():
            print(line, end="")
            if "ready" in line:
                return
        message = "the job did not start"
        raise SystemExit(message)

    def ask(self, command: str, *words: str, text: str | None = None) -> str:
        """Run a popstream command and return its output."""
        options = self._options + (self._var if command == "query" else [])
        done = subprocess.run(
            [POPSTREAM, command, *options, *words], input=text, stdout=subprocess.PIPE, text=True, check=True
        )
        return done.stdout

    def is_served(self) -> bool:
        """Return whether every order is acked."""
        lanes = [lane for queue in json.loads(self.ask("status", "--json"))["queues"] for lane in queue["lanes"]]
        return bool(lanes) and all(lane["lag"] == lane["leased"] == 0 for lane in lanes)

    @property
    def bootstrap_servers(self) -> str:
        """Return the address of its Kafka."""
        return str(json.loads(self.ask("status", "--json"))["bootstrap_servers"])

    def close(self) -> None:
        """Stop the job in order, so that the tables are complete."""
        self._job.send_signal(signal.SIGTERM)
        self._job.wait(TIMEOUT_S)


def worker(servers: str) -> subprocess.Popen[str]:
    """Start a worker, always with the same client id."""
    command = [sys.executable, str(HERE / "worker.py"), servers, "bar-1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def serve(bar: Bar) -> None:
    """Kill a worker halfway, start it again, and wait until every order is acked."""
    servers = bar.bootstrap_servers
    first = worker(servers)
    for count, _ in enumerate(first.stdout or (), 1):
        if count == KILLED_AFTER:
            break
    first.kill()
    first.wait()
    print(f"a worker was killed after {KILLED_AFTER} orders")
    second = worker(servers)
    until_s = time.monotonic() + TIMEOUT_S
    try:
        while not bar.is_served() and time.monotonic() < until_s:
            time.sleep(1)
    finally:
        second.send_signal(signal.SIGTERM)
        second.communicate()


def main() -> int:
    """Run the example; return 0 if the tables account for every delivery."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, default=Path("var/coffee_bar"), help="folder of the job; must not exist yet"
    )
    parser.add_argument("--var", type=Path, default=Path("var"), help="folder with the jars that `make setup` fetched")
    options = parser.parse_args()
    bar = Bar(options.folder, options.var)
    try:
        bar.ask("send", "orders", "--create", "4", text=orders())
        serve(bar)
    finally:
        bar.close()
    queries = [(HERE / name).read_text() for name in ("done_once.sql", "why_again.sql")]
    answers = [bar.ask("query", "--json", "--", query) for query in queries]
    done, again = ([json.loads(line) for line in answer.splitlines()] for answer in answers)
    for row in (*done, *again):
        print(", ".join(f"{name}: {value}" for name, value in row.items()))
    is_explained = all(not row["explanation"].startswith("not explained") for row in again)
    return 0 if done == [{"done_count": 1, "orders": ORDERS}] and is_explained else 1


if __name__ == "__main__":
    sys.exit(main())
