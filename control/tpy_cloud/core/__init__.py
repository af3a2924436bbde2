"""The listing of a bucket, and the plan of a copy: sans-IO."""
