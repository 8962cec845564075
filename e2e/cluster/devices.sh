# Fake GPUs of a worker's scene.
devices_start() { :; }
dra_start() { :; }
plugin_start() { :; }
