import deepspeed
from torch.utils.data import DataLoader

SEQ_LEN = 1024
CONFIG = "./ds_config_zero3_offload.json"


def train(model, data):
    engine, _, _, _ = deepspeed.initialize(model=model, config=CONFIG)
    for batch in DataLoader(data, 2):
        engine.step()
