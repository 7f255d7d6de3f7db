"""Devices that a machine without GPUs doesn't have: cpu:1, cpu:2 and so on. As with GPUs, a tensor is on one of them,
an operator's result is where its operands are, and operands on different devices are an error."""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

COPIES = ("copy_", "_foreach_copy_", "to", "cpu")  # the only ones between devices


class PretendedDevices(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self._places = WeakTensorKeyDictionary()
        self.seen = set()

    def put(self, module, place):
        for x in [*module.parameters(), *module.buffers()]:
            self._places[x] = place

    def _place(self, x):
        return self._places.get(x, torch.device("cpu"))

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if function == torch.Tensor.device.__get__:
            return self._place(args[0])
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        places = {self._place(x) for x in tensors if x.dim() > 0}
        wanted = next((x for x in [*args[1:], *kwargs.values()] if isinstance(x, torch.device)), None)
        if name in COPIES:
            place = torch.device("cpu") if name == "cpu" else wanted or self._place((tensors or [None])[0])
        else:
            if name in ("__getitem__", "__setitem__") and self._place(args[0]) in places - {torch.device("cpu")}:
                places.discard(torch.device("cpu"))  # of an index
            if len(places) > 1 and name != "__get__":
                raise RuntimeError(f"{name}: expected all tensors on the same device, found {sorted(map(str, places))}")
            place = wanted or next(iter([self._place(x) for x in tensors if x.dim() > 0] + [
                self._place(x) for x in tensors]), torch.device("cpu"))
        here = [torch.device("cpu") if isinstance(x, torch.device) else x for x in args]
        kwargs = {key: torch.device("cpu") if isinstance(x, torch.device) else x for key, x in kwargs.items()}
        found = function(*here, **kwargs)
        if name in ("to", "cpu") and found is tensors[0] and place != self._place(found):
            found = found.clone()
        self.seen.add(place)

        def put(x):
            if isinstance(x, torch.Tensor) and not any(x is one for one in tensors):
                self._places[x] = place
            return x

        return tree_map(put, found)
