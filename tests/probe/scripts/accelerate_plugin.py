from accelerate import Accelerator, DeepSpeedPlugin

plugin = DeepSpeedPlugin(hf_ds_config="ds_config.json")
accelerator = Accelerator(deepspeed_plugin=plugin)
