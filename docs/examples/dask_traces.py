"""One metric of many traces with Dask: every worker analyses traces, results are added where they are.

    pip install dask distributed
    python docs/examples/dask_traces.py run.r*.h5

Here the workers are processes of this machine. For other machines put the address of your scheduler, or a cluster of
dask-jobqueue or dask-kubernetes, in place of LocalCluster; they need this package, and the traces by the same names."""

import sys

import blockscope
from dask.distributed import Client, LocalCluster

AT_ONCE = 8  # results that one task adds


def similarity(path):
    """Of one trace. One thread: Dask runs as many of these at a time as it has workers."""
    return blockscope.analyze(path, "similarity", threads=1, progress=False)


def total(client, paths):
    """The result of all traces together. A sum weights means by their terms, so the order of adding does not matter."""
    results = client.map(similarity, paths)
    while len(results) > 1:
        results = [client.submit(sum, results[i:i + AT_ONCE]) for i in range(0, len(results), AT_ONCE)]
    return results[0].result()


if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        found = total(client, sys.argv[1:])
    print(found.by("layer")[["similarity_external", "similarity_internal"]].to_dataframe())
