"""Reads the world and changes nothing: drivers, hosts, models, configs, scripts, files.

Begin with the folder of the thing. A machine is read through the `World` of `files.py`.
"""
