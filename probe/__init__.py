"""mr2-probe: how good is a pretrained backbone on your classes, above all on the hard ones?"""

__version__ = "0.1.0"
