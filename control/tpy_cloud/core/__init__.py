"""What a listing of a bucket means for a copy of it: sans-IO."""
