"""MLServer's runtimes for trees: the same names of files and outputs, the same answers. The libraries are imported with the first
model."""

from __future__ import annotations

from typing import Any

from .codecs.numpy import NumpyCodec, NumpyRequestCodec
from .errors import InferenceError
from .model import MLModel
from .types import InferenceRequest, InferenceResponse, RequestOutput
from .utils import get_model_uri

PREDICT = "predict"
PROBABILITIES = "predict_proba"


class XGBoostModel(MLModel):
    """A model of XGBoost: the outputs `predict`, and of classifiers `predict_proba`."""

    async def load(self) -> bool:
        """As MLModel."""
        import xgboost

        path = await get_model_uri(self.settings, ["model.bst", "model.json", "model.ubj"])
        self._model: Any = xgboost.XGBRegressor()
        self._classifies = False
        try:
            self._model.load_model(path)
        except TypeError:  # the file of a classifier
            self._model = xgboost.XGBClassifier()
            self._model.load_model(path)
            self._classifies = True
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """As MLModel."""
        wanted = payload.outputs or [RequestOutput(name=PREDICT)]
        for each in wanted:
            if each.name not in (PREDICT, PROBABILITIES):
                raise InferenceError(
                    f"XGBoostModel only supports '{PREDICT}' and '{PROBABILITIES}' as outputs ({each.name} was received)"
                )
            if each.name == PROBABILITIES and not self._classifies:
                raise InferenceError(f"XGBRegressor models do not support '{PROBABILITIES}'")
        rows = self.decode_request(payload, default_codec=NumpyRequestCodec)
        outputs = [self.encode(getattr(self._model, each.name)(rows), each, default_codec=NumpyCodec) for each in wanted]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)


class LightGBMModel(MLModel):
    """A model of LightGBM: the output `predict`."""

    async def load(self) -> bool:
        """As MLModel."""
        import lightgbm

        self._model: Any = lightgbm.Booster(model_file=await get_model_uri(self.settings, ["model.bst"]))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """As MLModel."""
        rows = self.decode_request(payload, default_codec=NumpyRequestCodec)
        output = NumpyCodec.encode_output(PREDICT, self._model.predict(rows))
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[output])
