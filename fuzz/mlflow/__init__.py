"""Bodies of MLflow's scoring protocol."""
