"""A search for the configuration of a model that is best under some bounds: `tpy analyze`.

* `core/` decides: `space` (the configurations), `goal` (which row is better), `search` (which point is measured next: brute,
  quick), `checkpoint` (rows as text).
* `plan` is one analysis: model, load, space, goal; `model_analyzer` reads it from Model Analyzer's YAML.
* `server` is the server that is asked: one that this command starts, or a running one; each loads a model with a configuration in
  place of its file's over the model repository extension. Nothing is written to the repository.
* `running` measures the points that the search asks for with tpy_tools.load, and keeps every row.
* `report` makes the table, CSV, JSON, a page of HTML and the winner's config.pbtxt.

Works with every server of the protocol that runs in mode explicit; only a server that this command starts is tpy's.
"""
