"""An accelerator that is simulated in this process, for machines that have none: ``python -m … train EXAMPLE``.

torch sees the device ``simulated``. Its tensors compute on the processor, but they refuse what a real device refuses: an
operation with a tensor of the processor, unless it copies or has one number only. So a tensor that somebody forgot to move is
an error here too. Speed and number formats of a real device are not shown.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

NAME = "simulated"
_CPU = torch.device("cpu")
_CROSSING = {"aten::_to_copy", "aten::to", "aten::copy_", "aten::_copy_from"}
"""Operations that may have tensors of both devices."""
_CREATING = ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step")
_GENERATOR = torch.Generator


class _Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self) -> bool:
        return True

    def is_built(self) -> bool:
        return True

    def has_primary_context(self, number: int) -> bool:
        return True


class _Module:
    """What torch expects of the module of a device, such as `torch.cuda`."""

    def is_initialized(self) -> bool:
        return True

    is_available = is_initialized

    def _is_in_bad_fork(self) -> bool:
        return False

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: Any = 0) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = 0) -> None:
        pass


class Tensor(torch.Tensor):
    """A tensor of the device. ``near`` is the tensor of the processor that has its numbers."""

    near: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> Any:
        found = torch.Tensor._make_wrapper_subclass(
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=f"{NAME}:0",
        )
        found.near = near
        return found

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})

    # torch has no such methods for a device in Python.
    def tolist(self) -> Any:
        return self.near.tolist()

    def storage(self) -> Any:
        return self.near.storage()

    def untyped_storage(self) -> Any:
        return self.near.untyped_storage()


class _Generator:
    """A device in Python has no random numbers of its own."""

    def __new__(cls, device: Any = None) -> Any:
        return _GENERATOR()


def _near(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.near
    return _CPU if isinstance(value, torch.device) else value


def _far(value: Any) -> Any:
    return Tensor(value) if isinstance(value, torch.Tensor) else value


def _run(function: Any, args: Any, kwargs: Any) -> Any:
    name = function._schema.name
    values = tree_flatten((args, kwargs))[0]
    if name not in _CROSSING:
        for value in values:
            if isinstance(value, torch.Tensor) and not isinstance(value, Tensor) and value.dim() > 0:
                raise RuntimeError(f"{name}: one tensor is on {NAME}, another on the processor: {tuple(value.shape)}")
    target = next((value for value in values if isinstance(value, torch.device)), None)
    near_args, near_kwargs = tree_map(_near, (args, kwargs))
    out = function(*near_args, **near_kwargs)
    if name == "aten::copy_":
        return args[0]
    if target is not None:
        return out if target.type == "cpu" else tree_map(_far, out)
    return return_and_correct_aliasing(function, args, kwargs, tree_map(_far, out))


def register() -> None:
    """Give this process the device. Only once, because torch cannot forget it."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module(), hook=_Hooks())
    library = torch.library.Library("aten", "IMPL")
    for name in _CREATING:
        packet, _, overload = name.partition(".")
        create = getattr(getattr(torch.ops.aten, packet), overload or "default")

        def made(*args: Any, create: Any = create, **kwargs: Any) -> Tensor:
            return Tensor(create(*args, **{**kwargs, "device": _CPU, "pin_memory": False}))

        library.impl(name, made, "PrivateUse1")

    def copy(source: Any, target: Any, non_blocking: bool = False) -> Any:
        _near(target).copy_(_near(source))
        return target

    library.impl("_copy_from", copy, "PrivateUse1")
    globals()["_library"] = library
    torch.Generator = _Generator  # type: ignore[misc, assignment]


def main() -> None:
    register()
    try:
        torch.ones(2, device=NAME) + torch.ones(2)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the simulated accelerator computes with a tensor of the processor")
    from cantrip_acp.cli.main import main as cantrip

    cantrip(sys.argv[1:])


if __name__ == "__main__":
    main()
