"""Writes a folder as OpenVINO Model Server is started with. The models in it are empty files: enough to look at."""

import json
import sys
from pathlib import Path

MODELS = [
    {"name": "faces", "base_path": "/opt/ml/faces", "shape": "(1,3,300,300)", "nireq": 4, "target_device": "CPU"},
    {"name": "emotions", "base_path": "/opt/ml/emotions", "plugin_config": {"PERFORMANCE_HINT": "LATENCY"}, "layout": "NCHW"},
]
PIPELINE = {
    "name": "moods",
    "inputs": ["image"],
    "nodes": [
        {
            "name": "emotions_node",
            "model_name": "emotions",
            "type": "DL model",
            "inputs": [{"data": {"node_name": "request", "data_item": "image"}}],
            "outputs": [{"data_item": "prob_emotion", "alias": "emotion"}],
        }
    ],
    "outputs": [{"emotion": {"node_name": "emotions_node", "data_item": "emotion"}}],
}

folder = Path(sys.argv[1])
for model in MODELS:
    version = folder / model["name"] / "1"
    version.mkdir(parents=True)
    (version / "model.xml").touch()
    (version / "model.bin").touch()
configuration = {"model_config_list": [{"config": model} for model in MODELS], "pipeline_config_list": [PIPELINE]}
(folder / "config.json").write_text(json.dumps(configuration, indent=2))
print(f"{folder}/config.json: faces, emotions, moods")
