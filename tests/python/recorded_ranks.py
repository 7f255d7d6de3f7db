"""Models whose heads the processes of a group share, and the processes. They are forks of the test, which has imported
all that they need."""

import json
import multiprocessing
import socket
import sys
import time
import traceback

import recorded_models as models
import torch
import torch.distributed as dist


def share_heads(model, rank, count, group=None):
    """Leaves this rank's heads in the layers of transformers' Qwen3: column-wise q, k and v, row-wise o. The
    feed-forward network is shared in the same way."""

    def rows(linear):
        linear.weight.data = linear.weight.data.chunk(count, 0)[rank].clone()

    def columns(linear):
        linear.weight.data = linear.weight.data.chunk(count, 1)[rank].clone()
        linear.register_forward_hook(lambda module, args, out: (dist.all_reduce(out, group=group), out)[1])

    for layer in model.model.layers:
        for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj, layer.mlp.gate_proj,
                       layer.mlp.up_proj):
            rows(linear)
        for linear in (layer.self_attn.o_proj, layer.mlp.down_proj):
            columns(linear)
    return model


def share_layers(model, rank, count):
    """Leaves a contiguous part of the layers in this rank. Hidden states go from rank to rank, and all ranks get the
    logits of the last one, as transformers' pipelines do it."""
    layers = model.model.layers
    per_rank = len(layers) // count
    begin, end = rank * per_rank, len(layers) if rank == count - 1 else (rank + 1) * per_rank

    def receive(module, args, kwargs):
        hidden = args[0].contiguous().clone()
        dist.recv(hidden, rank - 1)
        return (hidden, *args[1:]), kwargs

    def share_logits(module, args, out):
        dist.broadcast(out.logits, count - 1)

    for index in range(len(layers)):
        if not begin <= index < end:
            layers[index] = Elsewhere()
    if rank > 0:
        layers[begin].register_forward_pre_hook(receive, with_kwargs=True)
    if rank < count - 1:
        layers[end - 1].register_forward_hook(lambda module, args, out: dist.send(out.contiguous(), rank + 1))
    model.register_forward_hook(share_logits)
    return model


class Elsewhere(torch.nn.Module):
    """In place of a layer that another rank has."""

    def forward(self, hidden, *args, **kwargs):
        return hidden


def plan_of_transformers(model, rank, count):
    """Heads shared as ``from_pretrained(..., distributed_config=DistributedConfig(tp_plan="auto"))`` shares them."""
    from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, apply_tensor_parallelism

    mesh, modules = dist.init_device_mesh("cpu", (count,)), dict(model.named_modules())
    plan = {name: style for pattern, style in model.tp_plan.items()
            for name in (pattern.replace("*", str(layer)) for layer in range(len(model.model.layers)))}
    for name, style in plan.items():  # as loading a checkpoint does it
        ALL_PARALLEL_STYLES[style].shard_param(modules[name], "weight", mesh)
    return apply_tensor_parallelism(model, mesh, plan)


SHARES = {"heads": share_heads, "layers": share_layers, "transformers": plan_of_transformers}


def _process(work, rank, count, port, path):
    torch.set_num_threads(1)
    begun = time.monotonic()
    said = {"error": None}
    try:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
        said["result"] = work(rank, count)
    except BaseException as error:
        said = {"error": type(error).__name__, "text": str(error), "notes": getattr(error, "__notes__", []),
                "trace": traceback.format_exc()}
    said["seconds"] = time.monotonic() - begun
    path.write_text(json.dumps(said))
    sys.stdout.flush()


def run(work, count, folder, seconds=60.0):
    """work(rank, count) in `count` processes -> what each said: its result or error, and how long it took. A process
    that was killed says None."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    paths = [folder / f"said-{port}-{rank}.json" for rank in range(count)]
    processes = [fork.Process(target=_process, args=(work, rank, count, port, path)) for rank, path in enumerate(paths)]
    for process in processes:
        process.start()
    end = time.monotonic() + seconds
    for process in processes:
        process.join(max(end - time.monotonic(), 0.1))
    hung = [rank for rank, process in enumerate(processes) if process.is_alive()]
    for process in processes:
        process.kill()
        process.join()
    assert not hung, f"ranks {hung} still ran after {seconds} s"
    return [json.loads(path.read_text()) if path.exists() else None for path in paths]
