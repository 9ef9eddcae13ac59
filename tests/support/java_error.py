"""An error of a JVM, without one."""

from __future__ import annotations

import socket
from typing import Any

from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from py4j.protocol import Py4JError, Py4JJavaError


class Ended:
    """Stands for the exception in a JVM that has ended."""

    def toString(self) -> str:  # noqa: N802 - as Java has it
        message = "Answer from Java side is empty"
        raise Py4JError(message)


def java_error(text: str, name: str = "java.io.IOException") -> Py4JJavaError:
    """Return an error whose exception has a text, and a class of this name."""

    class Throwable(Ended):
        _target_id = "o1"
        _gateway_client: Any = None

        def toString(self) -> str:  # noqa: N802 - as Java has it
            return text

        def getClass(self) -> Throwable:  # noqa: N802
            return self

        def getName(self) -> str:  # noqa: N802
            return name

    return Py4JJavaError("An error occurred", Throwable())


def ended_java_error() -> Py4JJavaError:
    """Return an error whose JVM has ended since."""
    error = java_error("")
    error.java_exception = Ended()
    return error


def ended_jvm() -> ClientServer:
    """Return py4j's gateway to a JVM that has ended: its port refuses connections."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return ClientServer(JavaParameters(port=port), PythonParameters(port=0, eager_load=False))
