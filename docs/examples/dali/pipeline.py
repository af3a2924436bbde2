import nvidia.dali as dali
import nvidia.dali.fn as fn
import nvidia.dali.types as types
from nvidia.dali.plugin.triton import autoserialize


@autoserialize
@dali.pipeline_def(batch_size=16, num_threads=2, device_id=0, output_dtype=types.FLOAT, output_ndim=3)
def preprocess():
    encoded = fn.external_source(device="cpu", name="ENCODED", dtype=types.UINT8, ndim=1)
    images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    images = fn.resize(images, resize_x=32, resize_y=32)
    return fn.crop_mirror_normalize(
        images, dtype=types.FLOAT, output_layout="CHW", mean=[127.5] * 3, std=[127.5] * 3, name="IMAGE"
    )
