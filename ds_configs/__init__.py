"""DeepSpeed JSONs, one a ZeRO stage: data, read through `remask.launcher.engine`."""
