"""Names and options that are misspelt; a type checker finds a fault in every line that is marked with "# no"."""

from __future__ import annotations

import edge_rt
from edge_rt import laod  # no

edge_rt.laod("x")  # no
laod("x")
edge_rt.export.export_modell("x", "y")  # no
edge_rt.load("x", cxt=512)  # no
edge_rt.load("x", memory=0.5)  # no
edge_rt.plan("x", treads=2)  # no
edge_rt.pull("x", wieghts="int4")  # no
edge_rt.pull("x", size=1.5)  # no
edge_rt.export_model("x", "y", weigths="int4")  # no
edge_rt.list_models(shop="x")  # no
edge_rt.LoadOptions(cxt=512)  # no
edge_rt.GenerationConfig(temprature=0.1)  # no
edge_rt.GenerationConfig().with_options(temprature=0.1)  # no

message: edge_rt.Mesage = {"role": "user"}  # no

with edge_rt.load("x") as model:
    model.genrate("x")  # no
    model.generate("x", temprature=0.1)  # no
    model.generate("x", temperature="hot")  # no
    model.generate("x", tool=[])  # no
    model.stream("x", max_new_tokens=3)  # no
    model.check("x", max_new_tokens=3)  # no
    model.astream("x", tool=[])  # no
    model.count_tokens("x", max_tokens=3)  # no
    model.encode(["x"])  # no
    chat = model.chat(sytem="x")  # no
    chat.send("x", temprature=0.1)  # no
    chat.stream("x", stop=3)  # no
    chat.astream("x", tools=[])  # no
    chat.regenerate(sed=1)  # no
    chat.send_tool_results([], sed=1)  # no
    chat.save(3)  # no


async def later(model: edge_rt.Model) -> None:
    await model.agenerate("x", temprature=0.1)  # no
    await model.chat().asend("x", temprature=0.1)  # no
