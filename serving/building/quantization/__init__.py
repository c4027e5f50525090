"""Networks in int8: calibrated with pictures that went through the definition, chosen by measured agreement."""
