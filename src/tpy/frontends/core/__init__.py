"""What both HTTP/2 servers need to keep peers within bounds. Sans-IO."""
