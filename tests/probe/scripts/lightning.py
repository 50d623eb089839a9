import lightning as L

L.Trainer(strategy="deepspeed_stage_2", devices=4).fit(model)
