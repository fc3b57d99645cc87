"""The measurements of `mainspring bench`: the user's machine and engine, on temporary stores."""
