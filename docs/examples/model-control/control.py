"""Load models by call, with Triton's client. Use: python control.py HOST:PORT MODEL_FILE"""

import json
import sys
from pathlib import Path

from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

url, model_file = sys.argv[1:]
client = InferenceServerClient(url)

# Of the repository, as it is on disk.
client.load_model("times")
print("times:", client.get_model_config("times")["instance_group"][0]["count"], "instances")

# With another configuration, for this load.
config = {"backend": "onnxruntime", "max_batch_size": 4, "instance_group": [{"count": 3, "kind": "KIND_CPU"}]}
client.load_model("times", config=json.dumps(config))
print("times:", client.get_model_config("times")["instance_group"][0]["count"], "instances")

# Of this call alone: no repository has it.
content = Path(model_file).read_bytes()
client.load_model("sent", config=json.dumps({"backend": "onnxruntime"}), files={"file:1/model.onnx": content})
print("sent:", "ready" if client.is_model_ready("sent") else "not ready")

try:
    client.load_model("nosuch")
except InferenceServerException as error:
    print("nosuch:", error.message())

client.unload_model("sent")
client.unload_model("times")
client.close()
