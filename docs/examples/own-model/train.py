"""Stands in for a model that you have trained: a classifier of scikit-learn, saved as model.joblib."""

import joblib
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier

flowers = load_iris()
model = RandomForestClassifier(random_state=0).fit(flowers.data, flowers.target_names[flowers.target])
joblib.dump(model, "model.joblib")
print("model.joblib:", model)
