"""Examples of the commands, for the reference page and the manual: the commands that an installation of tpy has."""

EXAMPLES = {
    "serve": ("tpy serve models",),
    "dev": ("tpy dev models",),
    "init": (
        "tpy init iris --from model.joblib --env venv",
        "tpy init resnet --from model.pt --input X:FP32:3,224,224",
        "tpy init net --from weights.pt --class net.py:Net --input X:FP32:8",
    ),
    "import": (
        "tpy import --dry-run mlruns/0/3c5a/artifacts/model",
        "tpy import mlruns/0/3c5a/artifacts/model --to models",
        "tpy import models.config",
    ),
    "auth-key": ("tpy auth-key team-a --role infer --models 'resnet*' >> auth.toml",),
    "infer": ("tpy infer iris 'X=[5.1, 3.5, 1.4, 0.2]'", "tpy infer resnet photo.png --output label --json"),
    "perf": (
        "tpy perf -m resnet --concurrency 1:64:*2 --report resnet.html",
        "tpy perf -m resnet -i grpc --rate 200 --input-data data.json",
    ),
    "top": ("tpy top", "tpy top --once --sort p99"),
    "explain": ("tpy explain iris", "tpy explain iris --request 17"),
    "record": ("tpy record 'resnet*' --seconds 600", "tpy record --status", "tpy record --stop"),
    "rollout": (
        "tpy rollout resnet50 --wait",
        "tpy rollout resnet50 --start --plan plan.json",
        "tpy rollout resnet50 --roll-back --url server:8000",
    ),
    "replay": ("tpy replay recording.tpyrec --url staging:8000 --tolerance 1e-3", "tpy replay recording.tpyrec --speed max"),
    "analyze": ("tpy analyze resnet --model-repository models --latency-ms 20", "tpy analyze -f config.yaml"),
    "check": ("tpy check models", "tpy check --deep models"),
    "doctor": ("tpy doctor models",),
    "demo": ("tpy demo README.md",),
    "completion": ("tpy completion bash --install",),
}
"""Examples of every command, in the order of the page."""
