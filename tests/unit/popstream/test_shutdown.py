"""Claim: a process that ends, however but by a kill, gives back what it holds. Method: real processes and signals.

The job is in memory in the process itself, which tells at its very end what was sent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from popstream.testing.memory_job import MemoryJob

BEGIN = """
import atexit, sys, threading, time
from popstream.wire.command import ChangeInvisible
from popstream.testing.memory_job import MemoryJob

job = MemoryJob()
job.write("orders", 0, [b"x"] * 10)

def tell():
    print([(entry.offsets, entry.invisible_time_ms)
           for change in job.records if isinstance(change, ChangeInvisible) for entry in change.entries], flush=True)

atexit.register(tell)
consumer = job.consumer("billing")
messages = consumer.pop("orders", 0, 10).messages
consumer.ack(messages[:4])
"""
GIVEN_BACK = "[([(4, 9)], 0)]"


def started(rest: str) -> subprocess.Popen[str]:
    code = textwrap.dedent(BEGIN) + textwrap.dedent(rest)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    out, _ = process.communicate(timeout=60)
    return process.returncode, out.splitlines()


@pytest.mark.parametrize("way", ["pass", "sys.exit(0)"])
def test_at_interpreter_exit(way: str) -> None:
    assert ended(started(way)) == (0, [GIVEN_BACK])


def test_after_an_error_that_nobody_catches() -> None:
    process = started("sys.stderr = open('/dev/null', 'w')\nraise ValueError")
    assert ended(process) == (1, [GIVEN_BACK])


def test_at_interpreter_exit_while_the_pop_of_a_coroutine_waits() -> None:
    process = started(
        """
        import asyncio
        from popstream import AsyncConsumer
        messages[0].extend(60).result()  # the others are given back, and this pop finds none meanwhile

        async def main():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(AsyncConsumer.of(consumer).pop("orders", 0, poll_time_ms=600_000), 0.1)

        import contextlib
        asyncio.run(main())
        """
    )
    assert ended(process)[0] == 0


def test_by_sigterm() -> None:
    process = started("print('ready', flush=True)\ntime.sleep(60)")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (128 + signal.SIGTERM, [GIVEN_BACK])


def test_by_sigterm_while_a_handler_works() -> None:
    """The handler ends first: what it does is acked and not given back."""
    process = started(
        """
        consumer.close()
        worker = job.consumer("shipping", topics=["orders"])
        def handle(message):
            print("ready", flush=True)
            time.sleep(0.5)
        with worker:
            worker.run(handle)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    status, lines = ended(process)
    assert status == 128 + signal.SIGTERM
    assert lines[-1] == "[([(4, 9)], 0), ([(1, 9)], 0)]"


@pytest.mark.parametrize(
    ("body", "given_back"),
    [
        ("await run_all(worker)", "[([(4, 9)], 0), ([(1, 9)], 0)]"),
        ("await run_all(worker, other)", "[([(4, 9)], 0), ([(1, 9)], 0), ([(1, 9)], 0)]"),
        ("task = asyncio.create_task(run_all(worker)); await asyncio.sleep(3_600)", "[([(4, 9)], 0), ([(1, 9)], 0)]"),
    ],
    ids=["one", "two", "in another task"],
)
def test_by_sigterm_while_coroutines_work(body: str, given_back: str) -> None:
    """They end first: what they do is acked and not given back, and nothing is cancelled."""
    process = started(
        f"""
        import asyncio
        from popstream import AsyncConsumer
        consumer.close()

        async def run_all(*workers):
            at_work = []

            def handler_of(worker, number):
                async def handle(message):
                    at_work.append(message)
                    if len(at_work) == len(workers):
                        print("ready", flush=True)
                    while not worker.consumer._subscription.is_stopped:
                        await asyncio.sleep(0.01)
                    await asyncio.sleep(number / 5)  # one ends before the other
                return handle

            await asyncio.gather(*(worker.run(handler_of(worker, number)) for number, worker in enumerate(workers)))

        async def main():
            async with (
                AsyncConsumer.of(job.consumer("shipping", topics=["orders"])) as worker,
                AsyncConsumer.of(job.consumer("invoices", topics=["orders"])) as other,
            ):
                {body}

        asyncio.run(main())
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    status, lines = ended(process)
    assert (status, lines) == (128 + signal.SIGTERM, [given_back])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize(
    ("in_child", "child_status"),
    [("pass", -signal.SIGTERM), ("own = job.consumer('billing', topics=['orders'])", 128 + signal.SIGTERM)],
)
def test_sigterm_ends_a_forked_child_although_a_lock_of_its_parent_was_held(in_child: str, child_status: int) -> None:
    """As if there were no client, unless the child has made one: that one is closed."""
    process = started(
        f"""
        import os, signal
        worker = job.consumer("shipping", topics=["orders"])
        subscription = worker.subscribe()
        held, forked = threading.Event(), threading.Event()

        def hold():
            with subscription._changed:
                held.set()
                forked.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        begun, begin = os.pipe()
        child = os.fork()
        if not child:
            {in_child}
            os.write(begin, b"x")
            while True:
                time.sleep(0.1)  # one long sleep may begin just after the signal, and not notice it
        forked.set()
        thread.join()
        os.read(begun, 1)
        os.kill(child, signal.SIGTERM)
        patience = threading.Timer(30, os.kill, (child, signal.SIGKILL))  # if it waits for the lock
        patience.start()
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        patience.cancel()
        """
    )
    status, lines = ended(process)
    assert status == 0
    assert f"child {child_status}" in lines


@pytest.mark.parametrize(
    ("when", "given_back"),
    [("at work", "[([(4, 9)], 0), ([(3, 3)], 60000), ([(4, 9)], 0)]"), ("waiting", "[([(4, 9)], 0)]")],
)
def test_by_sigint_while_the_main_thread_iterates(when: str, given_back: str) -> None:
    process = started(
        f"""
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with it ignored
        sys.stderr = open("/dev/null", "w")
        consumer.close()
        with job.consumer("shipping", topics=["orders"], back_off=[60]) as worker:
            for message in worker:
                with message:
                    if (message.queue_offset, {when!r}) == (3, "at work"):
                        print("ready", flush=True)
                        for _ in range(600):  # one long sleep may begin just after the signal, and not notice it
                            time.sleep(0.1)
                if message.queue_offset == 9:
                    print("ready", flush=True)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    status, lines = ended(process)
    assert (status, lines[-1]) == (-signal.SIGINT, given_back)


def test_the_main_thread_looks_again_in_parts_as_a_signal_just_before_a_wait_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float | None] = []
    job = MemoryJob()
    job.write("orders", 0, [])
    with job.consumer("billing", topics=["orders"]) as consumer:
        subscription = consumer.subscribe()
        waiting = threading.Condition()

        def wait(timeout_s: float | None = None) -> bool:
            waits.append(timeout_s)
            if len(waits) == 3:
                # Its notification comes between two waits, and ends none of them.
                subscription._hand_out.is_stopped = True
            return False

        monkeypatch.setattr(waiting, "wait", wait)
        monkeypatch.setattr(subscription._hand_out, "_changed", waiting)
        assert subscription.take(1) == []
    assert waits == [0.5] * 3


def test_a_handler_of_ones_own_for_sigterm_is_left_alone() -> None:
    process = started(
        """
        consumer.close()
        import os, signal
        # Not by print: the signal may come while the `ready` below is being flushed.
        signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"mine\\n") and sys.exit(7))
        other = job.consumer("billing")
        print("ready", flush=True)
        time.sleep(60)
        """
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGTERM)
    status, lines = ended(process)
    assert (status, lines[0]) == (7, "mine")
