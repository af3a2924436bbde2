"""What betterproto2 makes of proto/*.proto: one package per protobuf package. Written by proto/generate.py."""
