"""A service that works on orders. Some orders fail at first, and some take longer than their lease.

`python worker.py BOOTSTRAP_SERVERS CLIENT_ID`. SIGTERM stops it in order. After a SIGKILL, the next worker with the
same client id releases the messages that the killed one held.
"""

import json
import sys
import time

from popstream import Consumer, Message, Reject


def brew(message: Message) -> None:
    """Work on one order. It is acked when this returns, and retried when this raises, with a longer pause each time."""
    try:
        order = json.loads(message.value or b"{}")
    except ValueError as error:
        raise Reject("not JSON") from error  # to the dead letters, now
    if message.attempt <= order["fails"]:
        text = f"no milk for order {order['number']}"
        raise RuntimeError(text)
    # The lease of 10 s is renewed while this runs.
    time.sleep(order["takes_s"])
    print("done", order["number"], flush=True)


if __name__ == "__main__":
    servers, client_id = sys.argv[1:]
    with Consumer(
        servers,
        group="baristas",
        topics=["orders"],
        client_id=client_id,
        invisible_time_ms=10_000,
        max_attempts=5,  # then the order goes to the dead letters, with what was raised
        back_off=[1, 5, 30],  # seconds after the first, second, third and each later attempt
    ) as consumer:
        consumer.run(brew, workers=8)
