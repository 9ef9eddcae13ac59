"""Leasing-queue semantics for plain Kafka topics: the client library.

```python
from popstream import Consumer, Producer

with Producer("localhost:9092") as producer:
    producer.send("orders", b"one")

with Consumer("localhost:9092", group="billing", topics=["orders"]) as consumer:
    for message in consumer:
        with message:
            print(message.queue_offset, message.value)
```

Importing this needs kafka-python, msgspec and xxhash; the job and its command line come with `popstream[pipeline]`.

The public names load on first use, so `import popstream.wire` loads no Kafka client.
"""

from importlib import import_module
from importlib.metadata import version as _version
from importlib.util import find_spec
from typing import TYPE_CHECKING

__version__ = _version("popstream")

if TYPE_CHECKING:
    from popstream._api import *  # noqa: F403 - `_api.__all__` is the list of public names
else:  # a type checker that saw `__getattr__` would accept any name

    def __getattr__(name: str) -> object:
        if name == "__all__" or not (name.startswith("_") or _is_module(name)):
            api = import_module("popstream._api")
            if name == "__all__" or name in api.__all__:
                globals()[name] = value = getattr(api, name)
                return value
        message = f"module 'popstream' has no attribute {name!r}"
        raise AttributeError(message)

    def __dir__() -> list[str]:
        return import_module("popstream._api").__all__

    def _is_module(name: str) -> bool:
        """Tell whether Python asks because of `from popstream import MODULE`, which needs nothing else."""
        return find_spec(f"popstream.{name}") is not None
