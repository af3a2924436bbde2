"""Writes an archive as torch-model-archiver makes it, with a handler that counts words. TorchServe itself is not needed."""

import json
import sys
import zipfile
from pathlib import Path

HANDLER = """\
from collections import Counter

from ts.utils.util import load_label_mapping


class WordCounter:
    def initialize(self, context):
        self.most = context.model_yaml_config["most"]
        self.labels = load_label_mapping("index_to_name.json")

    def preprocess(self, data):
        return [row.get("data") or row.get("body") for row in data]

    def inference(self, texts):
        return [Counter(text.decode().split()).most_common(self.most) for text in texts]

    def handle(self, data, context):
        counts = self.inference(self.preprocess(data))
        context.metrics.add_counter("Texts", len(counts))
        return [{self.labels["0"]: dict(each)} for each in counts]
"""
MANIFEST = {
    "createdOn": "24/11/2026 17:04:36",
    "runtime": "python",
    "model": {"modelName": "words", "handler": "handler.py", "modelVersion": "1.0", "configFile": "model-config.yaml"},
    "archiverVersion": "0.12.0",
}
CONFIG = "minWorkers: 2\nmaxWorkers: 2\nbatchSize: 8\nmaxBatchDelay: 5\nresponseTimeout: 60\nstartupTimeout: 300\nmost: 2\n"

store = Path(sys.argv[1])
store.mkdir(parents=True)
with zipfile.ZipFile(store / "words.mar", "w") as archive:
    archive.writestr("handler.py", HANDLER)
    archive.writestr("index_to_name.json", '{"0": "words"}')
    archive.writestr("model-config.yaml", CONFIG)
    archive.writestr("MAR-INF/MANIFEST.json", json.dumps(MANIFEST))
(store / "config.properties").write_text("inference_address=http://0.0.0.0:8080\nload_models=all\n")
print(f"{store}: words.mar, config.properties")
