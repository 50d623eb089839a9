import deepspeed

from cli import get_args

engine, _, _, _ = deepspeed.initialize(args=get_args(), model=net())
