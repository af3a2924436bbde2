"""What stock clients see, compared with transcripts recorded from the real Triton server."""
