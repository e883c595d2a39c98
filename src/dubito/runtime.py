"""Where and how computations run: the device, and side by side or one after another.

Methods never ask; the identity by default.
"""

import contextlib
import multiprocessing
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

Item = TypeVar("Item")
Made = TypeVar("Made")
Precision = Literal["float32", "tf32", "bf16"]
CPU_FLOPS = 2e7  # per member and call: above this the members' own kernels fill the cores and vmap only adds traffic
CLEAR_FLOPS = 2e6  # below this vmap wins by so much that no probe is needed
GRACE = 3.0  # seconds that a worker has to save its run after Ctrl-C
PROBED = 3  # members in a timed probe
CUDA_PROBED = 16  # on a GPU, so that the launching of kernels is shared as it will be


def check_precision(name: str) -> Precision:
    """The precision of a name; one that there is not is refused."""
    if name not in get_args(Precision):
        raise ValueError(f"unknown precision {name!r}; use {', '.join(map(repr, get_args(Precision)))}")
    return cast(Precision, name)


def pick_device(device: str | torch.device) -> torch.device:
    """`"auto"` is CUDA where there is one; anything else is taken at its word."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        picked = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"unknown device {device!r}; use 'auto', 'cpu' or 'cuda'") from error
    if picked.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' but this machine has no CUDA device; use device='auto' or 'cpu'")
    return picked


@contextlib.contextmanager
def precision(name: Precision, device: torch.device) -> Iterator[None]:
    """How matrix products and convolutions round on a GPU: float32, its short form tf32, or bfloat16.

    Everything else, and everything on the CPU, stays in the network's own type.
    """
    if device.type == "cpu":
        yield
        return
    with products(name, device), torch.autocast("cuda", torch.bfloat16, enabled=name == "bf16", cache_enabled=False):
        yield


@contextlib.contextmanager
def products(name: Precision, device: torch.device) -> Iterator[None]:
    """How products of float32 round while they are taken, for compiled work whose types have been settled before."""
    flags: tuple[Any, ...] = () if device.type == "cpu" else (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [flag.allow_tf32 for flag in flags]
    try:
        for flag in flags:
            flag.allow_tf32 = name == "tf32"
        yield
    finally:
        for flag, allowed in zip(flags, before, strict=True):
            flag.allow_tf32 = allowed


@contextlib.contextmanager
def no_fast_path() -> Iterator[None]:
    """Attention's fused inference path has no batching rule; the ordinary one gives the same numbers."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def free_bytes(device: torch.device) -> int:
    """Memory of a GPU that tensors could take: what nobody has, and what torch holds without using it."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """For small networks, which lose by threads, the more so on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def ahead(f: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
    """f of one item after another, the next one under way in a thread while the last is used."""
    with ThreadPoolExecutor(1, thread_name_prefix="dubito-ahead") as worker:
        waiting: Future[Made] | None = None
        for item in items:
            begun = worker.submit(f, item)
            if waiting is not None:
                yield waiting.result()
            waiting = begun
        if waiting is not None:
            yield waiting.result()


def pays_to_vectorise(flops: float, device: torch.device) -> bool:
    """Whether vmap beats a loop over members: by a fixed rule, so that equal runs make equal bits."""
    return device.type != "cpu" or flops <= CPU_FLOPS


def wants_probe(flops: float, convolves: bool, device: torch.device) -> bool:
    """Whether a stopwatch has to choose in a prediction: on a GPU where vmap would make grouped convolutions."""
    return flops > CLEAR_FLOPS if device.type == "cpu" else device.type == "cuda" and convolves


def supports_vmap(f: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether f has a batching rule throughout (LSTM and GRU have none), found by trying it."""
    try:
        _vmapped(f, args)
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True


def over_members(f: Callable[..., Any], args: tuple[Any, ...], members: int, vectorise: bool) -> Any:
    """Apply f to each member of stacked arguments and stack the results; the numbers are the same either way."""
    if vectorise and members > 1:
        return _vmapped(f, args)
    return stack([f(*member(args, i)) for i in range(members)])


def is_faster_vectorised(f: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """A short timed probe of vmap against a loop, on a few members."""
    device = args[0].device
    most = CUDA_PROBED if device.type == "cuda" else PROBED
    few = tree_map(lambda t: t[:most], args)
    together, apart = (_seconds(partial(over_members, f, few, len(few[0]), way), device) for way in (True, False))
    return together < apart


def _seconds(f: Callable[[], Any], device: torch.device) -> float:
    """The time of a call; on a GPU of a second one, as the first chooses algorithms, until the device is done."""
    if device.type == "cuda":
        f()
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    f()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _vmapped(f: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    with warnings.catch_warnings():  # fused attention runs member by member inside vmap: no loss against a loop
        warnings.filterwarnings("ignore", message="There is a performance drop")
        return torch.func.vmap(f, randomness="different")(*args)


def member(args: Any, index: int) -> Any:
    """One member of stacked arguments, as views."""
    return tree_map(lambda t: t[index], args)


def one_by_one(f: Callable[[Any, int], tuple[Any, Any]], state: Any, members: int) -> Any:
    """Let f take each member's part of a state through a whole step, in place; returns what it tells, joined.

    For large networks this is faster than stacking: a member's weights, gradient and moments stay in the cache.
    """
    told = [f(tree_map(lambda t, i=i: t[i : i + 1], state), i)[1] for i in range(members)]
    return tree_map(lambda *parts: torch.cat(parts), told[0], *told[1:])


def stack(results: list[Any]) -> Any:
    """Stack equal structures of tensors along a new first axis."""
    return tree_map(_stacked, results[0], *results[1:])


def _stacked(*tensors: Tensor) -> Tensor:
    return torch.stack(tensors) if len(tensors) > 1 else tensors[0].unsqueeze(0)


@contextlib.contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Let one process at a time into a folder; the others wait, and go on when it leaves or dies."""
    if folder is None or sys.platform == "win32":
        yield
        return
    import fcntl

    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released with the file, however its process ends
        yield


def pool(workers: int) -> contextlib.AbstractContextManager[Executor | None]:
    """Processes with one thread each; none where one worker is enough."""
    if workers < 1:
        raise ValueError(f"workers is {workers}; there must be at least 1")
    return contextlib.nullcontext() if workers == 1 else _Pool(workers)


class _Pool(ProcessPoolExecutor):
    """Processes that leave soon after Ctrl-C, whatever they have still been given to do."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")  # threads do not survive a fork
        self._over = context.Event()
        super().__init__(workers, context, initializer=_begin, initargs=(self._over,))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool | None:
        if kind is not None and not issubclass(kind, Exception):
            self._over.set()
        return super().__exit__(kind, error, trace)


def _begin(over: Event) -> None:
    """One thread, and no life of its own: a worker whose parent was killed would wait for work for ever."""
    torch.set_num_threads(1)
    for leave in (_leave_with_parent, partial(_leave_after, over)):
        threading.Thread(target=leave, daemon=True).start()


def _leave_after(over: Event) -> None:
    over.wait()
    time.sleep(GRACE)
    os._exit(1)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
