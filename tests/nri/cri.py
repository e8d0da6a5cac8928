"""A client of CRI, the interface by which kubelet has a runtime run pods: the few calls and fields of the tests.

Messages are put together field by field, as nothing that generates code for them need be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc

SERVICE = "/runtime.v1.RuntimeService/"
# Much longer than any call takes.
LATEST_S = 60
NODE = 2

# A message, by the numbers of its fields: texts, numbers, messages, or several of these.
Fields = dict[int, object]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encoded(fields: Fields) -> bytes:
    out = b""
    for number, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, int):
                out += varint(number << 3) + varint(one)
                continue
            data = one.encode() if isinstance(one, str) else encoded(one)
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def decoded(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message."""
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        head = number()
        if head & 7 == 0:
            yield head >> 3, number()
        elif head & 7 == 2:
            length = number()
            yield head >> 3, data[at : at + length]
            at += length
        else:
            raise ValueError(f"a field of type {head & 7}")


def field(data: bytes, *numbers: int) -> int | bytes:
    """A field of a message, or of a message in it; 0 if it is not there."""
    value: int | bytes = data
    for number in numbers:
        assert isinstance(value, bytes), numbers
        value = next((found for at, found in decoded(value) if at == number), 0)
    return value


class Runtime:
    """A runtime, at its socket."""

    def __init__(self, socket: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix://{socket}")

    def call(self, method: str, fields: Fields) -> bytes:
        call = self._channel.unary_unary(SERVICE + method, lambda it: it, lambda it: it)
        return call(encoded(fields), timeout=LATEST_S)

    def _id(self, method: str, fields: Fields) -> str:
        answer = field(self.call(method, fields), 1)
        assert isinstance(answer, bytes) and answer, method
        return answer.decode()

    def pod(self, name: str, logs: Path, pids: bool = False) -> Pod:
        """Runs a pod in the host's network, so that no plugin for networks is needed; with `pids`, in its PID
        namespace, too."""
        options: Fields = {1: NODE, **({2: NODE} if pids else {})}
        config: Fields = {
            1: {1: name, 2: f"{name}-uid", 3: "default"},
            3: str(logs),
            8: {2: {1: options}},
        }
        return Pod(self, config, options, self._id("RunPodSandbox", {1: config}))

    def close(self) -> None:
        self._channel.close()


class Pod:
    def __init__(self, runtime: Runtime, config: Fields, options: Fields, identity: str) -> None:
        self.runtime, self.config, self.options, self.id = runtime, config, options, identity

    def create(
        self,
        name: str,
        image: str,
        command: list[str],
        *,
        mounts: list[Fields] | None = None,
        memory: int = 0,
        security: Fields | None = None,
    ) -> str:
        """Makes a container, with this limit of memory, and more of a security context; its ID."""
        config: Fields = {
            1: {1: name},
            2: {1: image},
            3: command,
            7: mounts or [],
            11: f"{name}.log",
            15: {1: {4: memory}, 2: {**(security or {}), 3: self.options}},
        }
        request = {1: self.id, 2: config, 3: self.config}
        return self.runtime._id("CreateContainer", request)

    def start(self, container: str) -> None:
        self.runtime.call("StartContainer", {1: container})

    def stop(self, container: str, patience_s: int = 0) -> None:
        self.runtime.call("StopContainer", {1: container, 2: patience_s})

    def exited(self, container: str) -> int | None:
        """The status with which a container has exited; `None` while it runs."""
        status = self.runtime.call("ContainerStatus", {1: container})
        code = field(status, 1, 7)
        assert isinstance(code, int)
        # 2 is the state of those that have exited.
        return code if field(status, 1, 3) == 2 else None

    def remove(self, container: str) -> None:
        self.runtime.call("RemoveContainer", {1: container})

    def end(self) -> None:
        self.runtime.call("StopPodSandbox", {1: self.id})
        self.runtime.call("RemovePodSandbox", {1: self.id})
