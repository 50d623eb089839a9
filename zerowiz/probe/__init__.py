"""Reads the world and changes nothing: drivers, hosts, models, configs, scripts, files.

Begin with the folder of the thing. `machine_recording.py` has the `World` that a machine is read through.
"""
