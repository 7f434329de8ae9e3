"""Reads a log folder with TensorBoard's readers and prints its contents as JSON:

    python read_events.py LOGDIR

The output is {"python": READ, "server": READ}. READ is {run: {"scalars": {tag: [[step, value or null], ...]},
"texts": {tag: [[step, text], ...]}}}. "python" is read by EventMultiplexer, and "server" by the data server that
`tensorboard` starts. "server" is null if that is not installed.
"""

import json
import logging
import math
import sys

from tensorboard.backend.event_processing import plugin_event_multiplexer
from tensorboard.context import RequestContext
from tensorboard.data import provider, server_ingester
from tensorboard.util import grpc_util, tensor_util

ALL = 0


def finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def text_of(value) -> str:
    return value.item().decode("utf-8")


def read_python(logdir: str) -> dict:
    multiplexer = plugin_event_multiplexer.EventMultiplexer(
        size_guidance={"tensors": ALL}, tensor_size_guidance={"scalars": ALL, "text": ALL}
    )
    multiplexer.AddRunsFromDirectory(logdir)
    multiplexer.Reload()
    runs = {}
    for run in multiplexer.Runs():
        read = runs[run] = {"scalars": {}, "texts": {}}
        accumulator = multiplexer.GetAccumulator(run)
        for kind, plugin in (("scalars", "scalars"), ("texts", "text")):
            for tag in accumulator.PluginTagToContent(plugin):
                show = (lambda x: finite(x.item())) if kind == "scalars" else text_of
                read[kind][tag] = [
                    [event.step, show(tensor_util.make_ndarray(event.tensor_proto))]
                    for event in accumulator.Tensors(tag)
                ]
    return runs


def read_server(logdir: str) -> dict | None:
    try:
        binary = server_ingester.get_server_binary()
    except server_ingester.NoDataServerError:
        return None
    ingester = server_ingester.SubprocessServerDataIngester(
        server_binary=binary,
        logdir=logdir,
        reload_interval=0,
        channel_creds_type=grpc_util.ChannelCredsType.LOCAL,
        samples_per_plugin={"scalars": ALL, "text": ALL},
    )
    ingester.start()
    data, context = ingester.data_provider, RequestContext()
    runs = {}
    for run in data.list_runs(context, experiment_id=""):
        only = provider.RunTagFilter(runs=[run.run_name])
        want = {"experiment_id": "", "run_tag_filter": only}
        scalars = data.read_scalars(context, plugin_name="scalars", downsample=10**6, **want)
        texts = data.read_tensors(context, plugin_name="text", downsample=10**6, **want)
        runs[run.run_name] = {
            "scalars": {
                tag: [[point.step, finite(point.value)] for point in points]
                for tag, points in scalars.get(run.run_name, {}).items()
            },
            "texts": {
                tag: [[point.step, text_of(point.numpy)] for point in points]
                for tag, points in texts.get(run.run_name, {}).items()
            },
        }
    return runs


def main() -> None:
    logging.getLogger("tensorboard").setLevel(logging.ERROR)
    logdir = sys.argv[1]
    json.dump({"python": read_python(logdir), "server": read_server(logdir)}, sys.stdout)


if __name__ == "__main__":
    main()
